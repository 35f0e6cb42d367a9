# The targets of the tree. A list is the paths of sources, relative to the calling folder.
#
# taopd_library(name [SRCS ...] DEPS ... [TORCH] [PLAIN] [COLD])
#                                                            Adds a static library. Its dependencies are public.
# taopd_sources(name file...)                                Adds sources of another folder to a library or test.
# taopd_binary(name SRCS ... DEPS ... [TORCH])               Adds a program in bin/.
# taopd_test(name SRCS ... DEPS ... LABELS ... [TORCH] [TIMEOUT seconds] [COST seconds])
#                                                            Adds a program of tests in tests-bin/.
#
# TORCH: the sources include LibTorch headers and share its precompiled header (common/pch). Such a target must not
#   include gRPC, protobuf, fmt or spdlog headers, because LibTorch carries other versions of two of them.
# PLAIN: the sources have no precompiled header, because they are compiled with options of their own.
# COLD: the sources run once per start, step, page or graded answer. Less optimization saves a fifth of their compilation.
# COST: ctest starts the tests with the highest cost first, so that no long test runs alone at the end.
#   Each suite of such a program is one ctest test. Other programs run up to four suites per ctest test
#   (DiscoverSuites.cmake). TIMEOUT is the limit of one suite.

# Several sources are compiled as one, because headers take most of the time of a compilation: those of LibTorch alone take
# three seconds. A source that must stand alone says so with SKIP_UNITY_BUILD_INCLUSION. -DTAOPD_UNITY=OFF compiles each source
# by itself, for work on one file and to find missing includes.
option(TAOPD_UNITY "Compile several sources as one" ON)
function(taopd_unity name)
  if(TAOPD_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
  endif()
endfunction()

# `pch` is the target whose precompiled header the sources of `name` share, or an empty string.
function(taopd_compile_settings name torch pch)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  if(torch)
    target_link_libraries(${name} PUBLIC taopd_torch)
  endif()
  if(pch)
    target_precompile_headers(${name} REUSE_FROM ${pch})
    if(TARGET taopd_json_templates)
      target_link_libraries(${name} PUBLIC taopd_json_templates)
    endif()
  endif()
endfunction()

# Sets `out` to the precompiled header of a library or program.
function(taopd_choose_pch out torch plain)
  set(pch taopd_base_pch)
  if(torch)
    set(pch taopd_torch_pch)
  endif()
  if(plain OR NOT TARGET ${pch})
    set(pch "")
  endif()
  set(${out} "${pch}" PARENT_SCOPE)
endfunction()

function(taopd_library name)
  cmake_parse_arguments(ARG "TORCH;PLAIN;COLD" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  taopd_choose_pch(pch "${ARG_TORCH}" "${ARG_PLAIN}")
  taopd_compile_settings(${name} "${ARG_TORCH}" "${pch}")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  if(NOT ARG_PLAIN)
    taopd_unity(${name})
  endif()
  if(ARG_COLD AND CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O1)
  endif()
endfunction()

function(taopd_sources name)
  target_sources(${name} PRIVATE ${ARGN})
endfunction()

function(taopd_binary name)
  cmake_parse_arguments(ARG "TORCH" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  taopd_choose_pch(pch "${ARG_TORCH}" "")
  taopd_compile_settings(${name} "${ARG_TORCH}" "${pch}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  taopd_unity(${name})
endfunction()

function(taopd_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT;COST" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(together 1)
  if(NOT ARG_COST)
    set(ARG_COST 0)
    set(together 4)
  endif()
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${together}")
  if(CMAKE_CROSSCOMPILING)  # emulated
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 30")
  endif()
  add_executable(${name} ${ARG_SRCS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests-bin)
  set(pch taopd_test_pch)
  if(ARG_TORCH)
    set(pch taopd_torch_test_pch)
  endif()
  if(NOT TARGET ${pch})
    set(pch "")
  endif()
  taopd_compile_settings(${name} "${ARG_TORCH}" "${pch}")
  # GCC warns of designated initializers, too. The fields that a test does not name have their defaults.
  target_compile_options(${name} PRIVATE -Wno-missing-field-initializers)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} taopd_test_support GTest::gmock GTest::gtest GTest::gtest_main)
  # Lists of properties are flattened on the way to ctest. Therefore several labels become one that names them all
  # (ctest -L takes a regular expression), and the environment is one variable.
  string(REPLACE ";" "+" labels "${ARG_LABELS}")
  set(properties LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST} ENVIRONMENT "TAOPD_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake)
  file(GENERATE OUTPUT ${script} CONTENT "set(taopd_program [[$<TARGET_FILE:${name}>]])
set(taopd_prefix ${name})
set(taopd_together ${together})
set(taopd_emulator ${CMAKE_CROSSCOMPILING_EMULATOR})
set(taopd_properties ${properties})
include([[${PROJECT_SOURCE_DIR}/common/cmake/DiscoverSuites.cmake]])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
endfunction()
