# Run after a test binary was built: writes one ctest entry per test suite, NAME/SUITE, to `file`. An entry per test would
# start a process for each, and loading libtorch takes longer than most of them. `name`, `program` and `folder`, from which
# the tests run, come from tests/CMakeLists.txt, and so does `cost`: ctest starts the dearest first.
execute_process(COMMAND ${program} --gtest_list_tests WORKING_DIRECTORY ${folder} OUTPUT_VARIABLE listing
                COMMAND_ERROR_IS_FATAL ANY)
# A line that begins a suite: its name, a dot, and perhaps a comment.
string(REGEX MATCHALL "(^|\n)[^ \n]+\\.(\n|  #)" lines "${listing}")
set(entries "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^\n?([^ \n]+)\\..*$" "\\1" suite "${line}")
  string(APPEND entries "add_test([=[${name}/${suite}]=] [=[${program}]=] [=[--gtest_filter=${suite}.*]=])\n"
         "set_tests_properties([=[${name}/${suite}]=] PROPERTIES WORKING_DIRECTORY [=[${folder}]=] TIMEOUT 1500 COST ${cost})\n")
endforeach()
if(NOT entries)
  message(FATAL_ERROR "${program} lists no tests")
endif()
file(WRITE ${file} "${entries}")
