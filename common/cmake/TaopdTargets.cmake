# taopd_library(name SRCS ... DEPS ... [TORCH])   a static library; DEPS are public
# taopd_binary(name SRCS ... DEPS ... [TORCH])    a program in bin/
# taopd_test(name SRCS ... DEPS ... LABELS ... [TORCH] [TIMEOUT seconds])
#
# TORCH: the sources include LibTorch headers and share its precompiled header. Such a target must
# not include gRPC, protobuf, fmt or spdlog headers: LibTorch carries other versions of two of them.
include(GoogleTest)

function(taopd_compile_settings name torch)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  if(torch)
    target_link_libraries(${name} PUBLIC taopd_torch)
    if(NOT name STREQUAL "taopd_torch_pch")
      target_precompile_headers(${name} REUSE_FROM taopd_torch_pch)
    endif()
  endif()
endfunction()

function(taopd_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  taopd_compile_settings(${name} "${ARG_TORCH}")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

function(taopd_binary name)
  cmake_parse_arguments(ARG "TORCH" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  taopd_compile_settings(${name} "${ARG_TORCH}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()

function(taopd_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SRCS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests-bin)
  taopd_compile_settings(${name} "${ARG_TORCH}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} taopd_test_support GTest::gmock GTest::gtest GTest::gtest_main)
  # gtest_discover_tests flattens lists in properties: several labels become one that names them all
  # (ctest -L takes a regular expression), and the environment is one variable.
  string(REPLACE ";" "+" labels "${ARG_LABELS}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 TEST_PREFIX "${name}." PROPERTIES
    LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "TAOPD_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
endfunction()

# Owner of LibTorch's precompiled header.
add_library(taopd_torch_pch OBJECT ${PROJECT_SOURCE_DIR}/common/cmake/torch_pch.cc)
taopd_compile_settings(taopd_torch_pch TRUE)
target_precompile_headers(taopd_torch_pch PRIVATE ${PROJECT_SOURCE_DIR}/common/cmake/torch_pch.h)

# taopd_fuzz_test(name SRC entry.cc SEEDS files and directories... [DICTIONARY file] INPUTS n DEPS ...)
# One fuzz entry (LLVMFuzzerTestOneInput), twice: fuzz_NAME_test runs it on the seeds and n damaged ones
# (tests/support/mutation.h); with TAOPD_FUZZ, fuzz-bin/NAME is a libFuzzer program. Paths are from the root
# of the tree. The seeds and the dictionary of a program stand in fuzz-bin/NAME.inputs, for tests/fuzz/run.
option(TAOPD_FUZZ "Build libFuzzer programs (clang): the target fuzzers" OFF)
if(TAOPD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "TAOPD_FUZZ needs clang; the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)  # coverage of every library
  add_custom_target(fuzzers)
endif()
function(taopd_fuzz_test name)
  cmake_parse_arguments(ARG "" "SRC;DICTIONARY;INPUTS" "SEEDS;DEPS" ${ARGN})
  string(REPLACE ";" ":" seeds "${ARG_SEEDS}")
  if(NOT TAOPD_FUZZ)
    taopd_test(fuzz_${name}_test SRCS ${PROJECT_SOURCE_DIR}/tests/fuzz/damaged_inputs_test.cc ${ARG_SRC}
      DEPS ${ARG_DEPS} LABELS property unit)
    target_compile_definitions(fuzz_${name}_test PRIVATE TAOPD_FUZZ_SEEDS="${seeds}"
      TAOPD_FUZZ_DICTIONARY="${ARG_DICTIONARY}" TAOPD_FUZZ_INPUTS=${ARG_INPUTS})
    return()
  endif()
  add_executable(fuzz_${name} ${ARG_SRC})
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz-bin
    OUTPUT_NAME ${name})
  taopd_compile_settings(fuzz_${name} FALSE)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(fuzz_${name} PRIVATE ${ARG_DEPS} taopd_test_support GTest::gtest)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/fuzz-bin/${name}.inputs CONTENT "${seeds}\n${ARG_DICTIONARY}\n")
  add_dependencies(fuzzers fuzz_${name})
endfunction()
