# taopd_library(name [SRCS ...] DEPS ... [TORCH] [PLAIN])   a static library; DEPS are public
# taopd_sources(name file...)                                more sources of a library, from a sub-folder
# taopd_binary(name SRCS ... DEPS ... [TORCH])               a program in bin/
# taopd_test(name SRCS ... DEPS ... LABELS ... [TORCH] [TIMEOUT seconds] [COST seconds])
#
# TORCH: the sources include LibTorch headers and share its precompiled header. Such a target must
# not include gRPC, protobuf, fmt or spdlog headers: LibTorch carries other versions of two of them.
# Up to four test suites of the program are one test of ctest (DiscoverSuites.cmake). TIMEOUT is that of a suite.
# COST: what takes long is started first, so that it does not run alone at the end; each of its suites is a test.
# PLAIN: no precompiled header, for sources that are compiled with options of their own.

# Sixteen sources are compiled as one: most of a compilation is what headers bring, and in files that use LibTorch three
# seconds are. A source that must stand alone says so with SKIP_UNITY_BUILD_INCLUSION; -DTAOPD_UNITY=OFF compiles each by
# itself (work on one file, missing includes).
option(TAOPD_UNITY "Compile several sources as one" ON)
function(taopd_unity name)
  if(TAOPD_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  endif()
endfunction()

# pch: the target whose precompiled header the sources of `name` share, or an empty string.
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

# The precompiled header of a library or program.
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
  cmake_parse_arguments(ARG "TORCH;PLAIN" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  taopd_choose_pch(pch "${ARG_TORCH}" "${ARG_PLAIN}")
  taopd_compile_settings(${name} "${ARG_TORCH}" "${pch}")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  if(NOT ARG_PLAIN)
    taopd_unity(${name})
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
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} taopd_test_support GTest::gmock GTest::gtest GTest::gtest_main)
  # Lists of properties are flattened on the way to ctest: several labels become one that names them all (ctest -L
  # takes a regular expression), and the environment is one variable.
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

# Owners of the precompiled headers: taopd_pch(name header libraries...).
function(taopd_pch name header)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/common/cmake/pch/empty.cc)
  taopd_compile_settings(${name} "" "")
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/common/cmake/pch/${header})
  target_link_libraries(${name} PRIVATE ${ARGN})
endfunction()
taopd_pch(taopd_torch_pch torch.h taopd_torch)
if(TARGET absl::status)  # not in the build of the kernels alone (tests/gpu)
  # What the headers declare as compiled elsewhere.
  add_library(taopd_json_templates STATIC ${PROJECT_SOURCE_DIR}/common/cmake/pch/json_templates.cc)
  target_include_directories(taopd_json_templates PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(taopd_json_templates PUBLIC nlohmann_json::nlohmann_json)
  taopd_pch(taopd_base_pch base.h absl::status nlohmann_json::nlohmann_json)
  taopd_pch(taopd_test_pch test.h absl::status nlohmann_json::nlohmann_json GTest::gmock)
  taopd_pch(taopd_torch_test_pch torch_test.h taopd_torch absl::status nlohmann_json::nlohmann_json GTest::gmock)
endif()

# taopd_fuzz_test(name SRC entry.cc SEEDS files and directories... [DICTIONARY file] INPUTS n DEPS ...)
# One fuzz entry (LLVMFuzzerTestOneInput), twice: fuzz_NAME_test runs it on the seeds and n damaged ones
# (tests/support/mutation.h); with TAOPD_FUZZ, fuzz-bin/NAME is a libFuzzer program. Paths are from the root
# of the tree. The lines of PROGRAM.inputs beside each program are its seeds, its dictionary and, for the test,
# n: so damaged_inputs_test.cc is compiled once for all tests, and tests/fuzz/run finds what it needs.
if(TAOPD_FUZZ)
  add_custom_target(fuzzers)
endif()
function(taopd_fuzz_test name)
  cmake_parse_arguments(ARG "" "SRC;DICTIONARY;INPUTS" "SEEDS;DEPS" ${ARGN})
  string(REPLACE ";" ":" seeds "${ARG_SEEDS}")
  if(NOT TAOPD_FUZZ)
    if(NOT TARGET taopd_damaged_inputs_test)
      add_library(taopd_damaged_inputs_test OBJECT ${PROJECT_SOURCE_DIR}/tests/fuzz/damaged_inputs_test.cc)
      taopd_compile_settings(taopd_damaged_inputs_test "" taopd_test_pch)
      target_link_libraries(taopd_damaged_inputs_test PRIVATE taopd_test_support GTest::gmock)
    endif()
    taopd_test(fuzz_${name}_test SRCS ${ARG_SRC} $<TARGET_OBJECTS:taopd_damaged_inputs_test>
      DEPS ${ARG_DEPS} LABELS property unit)
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/tests-bin/fuzz_${name}_test.inputs
      CONTENT "${seeds}\n${ARG_DICTIONARY}\n${ARG_INPUTS}\n")
    return()
  endif()
  add_executable(fuzz_${name} ${ARG_SRC})
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz-bin
    OUTPUT_NAME ${name})
  taopd_compile_settings(fuzz_${name} "" "")
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(fuzz_${name} PRIVATE ${ARG_DEPS} taopd_test_support GTest::gtest)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/fuzz-bin/${name}.inputs CONTENT "${seeds}\n${ARG_DICTIONARY}\n")
  add_dependencies(fuzzers fuzz_${name})
endfunction()
