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

# taopd_fuzz_test(name FUZZ entry.cc TEST test.cc DEPS ... [TORCH])   one fuzz entry
# (LLVMFuzzerTestOneInput), twice: NAME_test runs it on a fixed set of damaged inputs
# (tests/support/mutation.h); with clang and -DTAOPD_FUZZ=ON, fuzz-bin/NAME is a libFuzzer program.
option(TAOPD_FUZZ "Build libFuzzer programs (clang)" OFF)
function(taopd_fuzz_test name)
  cmake_parse_arguments(ARG "TORCH" "FUZZ;TEST" "DEPS" ${ARGN})
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  taopd_test(${name}_test ${torch} SRCS ${ARG_TEST} ${ARG_FUZZ} DEPS ${ARG_DEPS} LABELS property unit)
  if(TAOPD_FUZZ AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
    add_executable(${name} ${ARG_FUZZ})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz-bin)
    taopd_compile_settings(${name} "${ARG_TORCH}")
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  endif()
endfunction()
