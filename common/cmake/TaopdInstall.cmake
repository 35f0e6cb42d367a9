# cmake --install: the programs, their examples and their pages, in the folders that GNUInstallDirs
# names. The programs find LibTorch, Arrow and xgrammar where the build has found them.
# deploy/release makes packages that need no libraries of this machine.
include(GNUInstallDirs)

set(taopd_programs taopd-teacher taopd-grammar taopd-trainer taopd-probe)
set_target_properties(${taopd_programs} PROPERTIES
  INSTALL_RPATH_USE_LINK_PATH ON BUILD_WITH_INSTALL_RPATH ON)
install(TARGETS ${taopd_programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY deploy/recipes deploy/examples deploy/systemd proto
  DESTINATION ${CMAKE_INSTALL_DATADIR}/taopd
  PATTERN __pycache__ EXCLUDE
  PATTERN CMakeLists.txt EXCLUDE)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
find_package(Python3 REQUIRED COMPONENTS Interpreter)
install(CODE "
  set(pages \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR})
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/deploy/tools/packed_pages.py \${pages}
    COMMAND_ERROR_IS_FATAL ANY)")
