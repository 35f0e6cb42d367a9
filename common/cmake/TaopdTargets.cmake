# The targets of the tree. A folder with a list of its own, CMakeLists.txt, has targets of its own;
# the paths of sources are relative to that folder.
#
# taopd_library(name SRCS ... [DEPS ...] [PRIVATE_DEPS ...] [TORCH] [PLAIN] [COLD])
#   Adds a static library.
# taopd_binary(name SRCS ... [DEPS ...] [TORCH])
#   Adds a program in bin/.
# taopd_test(name SRCS ... [DEPS ...] LABELS ... [TORCH] [TIMEOUT seconds] [COST seconds]
#            [SUITES_PER_TEST n])
#   Adds a test binary in tests-bin/.
# taopd_command_test(name COMMAND ... LABELS ... [TIMEOUT seconds] [COST seconds]
#                    [ENVIRONMENT NAME=value ...])
#   Adds a test that runs a command. It counts as skipped if the command ends with 77.
#
# PRIVATE_DEPS: users of the library see no header of these dependencies. They see those of DEPS.
# TORCH: the sources include LibTorch headers and share its precompiled header (common/pch). Such a
#   target must not include gRPC, protobuf, fmt or spdlog headers, because LibTorch carries other
#   versions of two of them.
# PLAIN: the sources have no precompiled header, because they are compiled with options of their
#   own.
# COLD: the sources run once per start, step, page or graded answer. Less optimization saves a fifth
#   of their compilation.
# TIMEOUT: 120 by default. A ctest test that runs n suites of a program may take n times this.
# COST: ctest starts the tests with the highest cost first, so that no long test runs alone at the
#   end. It is 0 by default.
# SUITES_PER_TEST: how many suites of a program a ctest test runs (DiscoverSuites.cmake). It is 4 by
#   default, and 12 with TORCH, because LibTorch takes longer to load than most suites do.

# Gives the argument ARG_`name` of the calling function a value unless the caller has set it.
function(taopd_default name)
  if(NOT ARG_${name})
    set(ARG_${name} ${ARGN} PARENT_SCOPE)
  endif()
endfunction()

# Several sources are compiled as one, because headers take most of the time of a compilation: those
# of LibTorch alone take three seconds. A source that must stand alone says so with
# SKIP_UNITY_BUILD_INCLUSION. -DTAOPD_UNITY=OFF compiles each source by itself, for work on one file
# and to find missing includes.
option(TAOPD_UNITY "Compile several sources as one" ON)
function(taopd_unity name)
  if(TAOPD_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
  endif()
endfunction()

# `pch` is the target whose precompiled header the sources of `name` share. They have none if this
# build has no such target.
function(taopd_compile_settings name torch pch)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  if(torch)
    target_link_libraries(${name} PUBLIC taopd_torch)
  endif()
  if(TARGET "${pch}")
    target_precompile_headers(${name} REUSE_FROM ${pch})
    # The header declares nlohmann_json's code as compiled there.
    if(TARGET taopd_json_templates)
      target_link_libraries(${name} PUBLIC taopd_json_templates)
    endif()
  endif()
endfunction()

function(taopd_library name)
  cmake_parse_arguments(ARG "TORCH;PLAIN;COLD" "" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  set(pch taopd_base_pch)
  if(ARG_TORCH)
    set(pch taopd_torch_pch)
  elseif(ARG_PLAIN)
    set(pch "")
  endif()
  taopd_compile_settings(${name} "${ARG_TORCH}" "${pch}")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(NOT ARG_PLAIN)
    taopd_unity(${name})
  endif()
  if(ARG_COLD AND CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O1)
  endif()
endfunction()

function(taopd_binary name)
  cmake_parse_arguments(ARG "TORCH" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  set(pch taopd_base_pch)
  if(ARG_TORCH)
    set(pch taopd_torch_pch)
  endif()
  taopd_compile_settings(${name} "${ARG_TORCH}" ${pch})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  taopd_unity(${name})
endfunction()

function(taopd_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT;COST;SUITES_PER_TEST" "SRCS;DEPS;LABELS" ${ARGN})
  set(pch taopd_test_pch)
  set(suites_per_test 4)
  if(ARG_TORCH)
    set(pch taopd_torch_test_pch)
    set(suites_per_test 12)
  endif()
  taopd_default(TIMEOUT 120)
  taopd_default(COST 0)
  taopd_default(SUITES_PER_TEST ${suites_per_test})
  if(CMAKE_CROSSCOMPILING)  # emulated
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 30")
  elseif(TAOPD_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  add_executable(${name} ${ARG_SRCS})
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests-bin)
  taopd_compile_settings(${name} "${ARG_TORCH}" ${pch})
  # GCC warns of designated initializers, too. The fields that a test does not name have their
  # defaults.
  target_compile_options(${name} PRIVATE -Wno-missing-field-initializers)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} taopd_test_support GTest::gmock GTest::gtest
    GTest::gtest_main)
  # Lists of properties are flattened on the way to ctest. Therefore several labels become one that
  # names them all (ctest -L takes a regular expression), and the environment is one variable.
  string(REPLACE ";" "+" labels "${ARG_LABELS}")
  set(properties LABELS "${labels}" COST ${ARG_COST}
    ENVIRONMENT "TAOPD_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake)
  file(GENERATE OUTPUT ${script} CONTENT "set(taopd_program [[$<TARGET_FILE:${name}>]])
set(taopd_prefix ${name})
set(taopd_suites_per_test ${ARG_SUITES_PER_TEST})
set(taopd_timeout ${ARG_TIMEOUT})
set(taopd_emulator ${CMAKE_CROSSCOMPILING_EMULATOR})
set(taopd_properties [[${properties}]])
include([[${PROJECT_SOURCE_DIR}/common/cmake/DiscoverSuites.cmake]])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
endfunction()

function(taopd_command_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;COST" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  taopd_default(TIMEOUT 120)
  taopd_default(COST 0)
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  list(APPEND ARG_ENVIRONMENT TAOPD_SOURCE_DIR=${PROJECT_SOURCE_DIR}
       TAOPD_BIN_DIR=${PROJECT_BINARY_DIR}/bin PYTHONDONTWRITEBYTECODE=1)
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    COST ${ARG_COST} SKIP_RETURN_CODE 77 ENVIRONMENT "${ARG_ENVIRONMENT}")
endfunction()
