# Run by ctest: adds one test for each test suite of a GoogleTest program. A process a suite, because loading
# LibTorch takes longer than most tests.
#
# Set by the including script: taopd_program, taopd_prefix, taopd_properties (of each test), taopd_emulator (which runs the programs of
# another architecture; else empty).
execute_process(COMMAND ${taopd_emulator} ${taopd_program} --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  add_test(${taopd_prefix}.NOT_BUILT ${taopd_emulator} ${taopd_program})  # fails, and names the program
  return()
endif()
string(REPLACE ";" "\\;" listed "${listed}")
string(REPLACE "\n" ";" listed "${listed}")
foreach(line IN LISTS listed)
  # "Suite." or "Suite/0.  # TypeParam = ..."; its tests follow, indented.
  if(line MATCHES "^([A-Za-z0-9_/]+)\\.( |$)")
    set(suite ${CMAKE_MATCH_1})
    add_test(${taopd_prefix}.${suite} ${taopd_emulator} ${taopd_program} --gtest_filter=${suite}.*)
    set_tests_properties(${taopd_prefix}.${suite} PROPERTIES ${taopd_properties})
  endif()
endforeach()
