# Run by cmake --install before it copies: what the program prints about itself. `program`, `made`, `packaging` and `date`
# come from install.cmake.
function(make_from_program file)
  execute_process(COMMAND ${program} ${ARGN} OUTPUT_FILE ${made}/${file} ERROR_VARIABLE fault RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " words)
    message(FATAL_ERROR "cannot make ${file}: ${program} ${words} failed; build the target thinpipe first. ${fault}")
  endif()
endfunction()

# Neither name nor time in it: the same input gives the same bytes.
function(compress file)
  execute_process(COMMAND gzip -9nc ${made}/${file} OUTPUT_FILE ${made}/${file}.gz COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# The manual page from --help-all; packaging/manual.txt has the sections that no help text holds.
function(make_manual_page)
  find_program(HELP2MAN help2man)
  if(NOT HELP2MAN)
    message(FATAL_ERROR "cannot make the manual page: install the Debian package help2man")
  endif()
  execute_process(COMMAND date --utc --date=${date} +%s OUTPUT_VARIABLE seconds OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env SOURCE_DATE_EPOCH=${seconds} LC_ALL=C ${HELP2MAN} --no-info
                          --help-option=--help-all --include=${packaging}/manual.txt --output=${made}/thinpipe.1 ${program}
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Two installs of one build at the same time would read each other's half-written files. Held until this cmake ends.
file(LOCK ${made} DIRECTORY GUARD PROCESS)
make_from_program(thinpipe completion bash)
make_from_program(_thinpipe completion zsh)
make_manual_page()
compress(thinpipe.1)
compress(changelog)
