# Adds the tests of a test binary; ctest runs this script. Each ctest test is a process that
# runs up to `taopd_suites_per_test` suites in turn; its name is theirs, joined by "+".
#
# The including script sets taopd_program, taopd_prefix, taopd_suites_per_test, taopd_timeout (of
# one suite, in seconds), taopd_properties (of each test), taopd_emulator (which runs the programs
# of another architecture; else empty).
execute_process(COMMAND ${taopd_emulator} ${taopd_program} --gtest_list_tests
  OUTPUT_VARIABLE listed RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  # This test fails, and names the program.
  add_test(${taopd_prefix}.NOT_BUILT ${taopd_emulator} ${taopd_program})
  return()
endif()
string(REPLACE ";" "\\;" listed "${listed}")
string(REPLACE "\n" ";" listed "${listed}")
set(suites "")
foreach(line IN LISTS listed)
  # "Suite." or "Suite/0.  # TypeParam = ..."; its tests follow, indented.
  if(line MATCHES "^([A-Za-z0-9_/]+)\\.( |$)")
    list(APPEND suites ${CMAKE_MATCH_1})
  endif()
endforeach()
while(suites)
  list(SUBLIST suites 0 ${taopd_suites_per_test} chosen)
  list(REMOVE_ITEM suites ${chosen})
  list(LENGTH chosen num_chosen)
  math(EXPR timeout "${taopd_timeout} * ${num_chosen}")
  list(JOIN chosen "+" name)
  list(JOIN chosen ".*:" filter)
  add_test(${taopd_prefix}.${name} ${taopd_emulator} ${taopd_program} --gtest_filter=${filter}.*)
  set_tests_properties(${taopd_prefix}.${name} PROPERTIES TIMEOUT ${timeout} ${taopd_properties})
endwhile()
