# Adds the tests of a GoogleTest program; ctest runs this script. Each ctest test is a process that runs `taopd_together`
# suites in turn; its name is theirs, joined by "+". Loading LibTorch takes longer than most suites do, so a process runs more
# than one.
#
# Set by the including script: taopd_program, taopd_prefix, taopd_together, taopd_properties (of each test), taopd_emulator
# (which runs the programs of another architecture; else empty).
execute_process(COMMAND ${taopd_emulator} ${taopd_program} --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  add_test(${taopd_prefix}.NOT_BUILT ${taopd_emulator} ${taopd_program})  # fails, and names the program
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
  list(SUBLIST suites 0 ${taopd_together} chosen)
  list(REMOVE_ITEM suites ${chosen})
  list(JOIN chosen "+" name)
  list(JOIN chosen ".*:" filter)
  add_test(${taopd_prefix}.${name} ${taopd_emulator} ${taopd_program} --gtest_filter=${filter}.*)
  set_tests_properties(${taopd_prefix}.${name} PROPERTIES ${taopd_properties})
endwhile()
