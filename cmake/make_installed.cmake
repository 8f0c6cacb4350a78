# Run by cmake --install before it copies: what the program prints about itself. `program` and `made` come from
# install.cmake.
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

make_from_program(thinpipe.1 man)
make_from_program(thinpipe completion bash)
make_from_program(_thinpipe completion zsh)
compress(thinpipe.1)
compress(changelog)
