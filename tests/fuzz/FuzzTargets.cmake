# taopd_fuzz_test(name SRC entry.cc SEEDS files and directories... [DICTIONARY file] INPUTS n DEPS ...)
# Builds a fuzz entry (LLVMFuzzerTestOneInput). By default, fuzz_NAME_test runs it on the seeds and on n damaged ones
# (tests/support/mutation.h). With TAOPD_FUZZ, fuzz-bin/NAME is a libFuzzer program instead. Paths are relative to the root
# of the tree. PROGRAM.inputs beside each program has its seeds, its dictionary and, for the test, n, one per line. From it
# damaged_inputs_test.cc, which is compiled once for all tests, and tests/fuzz/run learn them.
if(TAOPD_FUZZ)
  add_custom_target(fuzzers)
endif()
function(taopd_fuzz_test name)
  cmake_parse_arguments(ARG "" "SRC;DICTIONARY;INPUTS" "SEEDS;DEPS" ${ARGN})
  string(REPLACE ";" ":" seeds "${ARG_SEEDS}")
  if(NOT TAOPD_FUZZ)
    if(NOT TARGET taopd_damaged_inputs_test)
      add_library(taopd_damaged_inputs_test OBJECT damaged_inputs_test.cc)
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
