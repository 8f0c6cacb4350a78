# thinpipe_library(NAME SOURCES ... [DEPENDS ...] [LINKS ...] [TORCH]): the library of one folder of src/.
#   DEPENDS: other folders it may include; they are passed on to whoever links this one.
#   LINKS:   third-party targets.
function(thinpipe_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS;LINKS" ${ARGN})
  add_library(thinpipe_${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPENDS PREPEND thinpipe_)
  target_link_libraries(thinpipe_${name} PUBLIC thinpipe_flags ${ARG_DEPENDS} ${ARG_LINKS})
  if(ARG_TORCH)
    target_link_libraries(thinpipe_${name} PUBLIC thinpipe_torch)
    target_precompile_headers(thinpipe_${name} REUSE_FROM thinpipe_torch_pch)
  endif()
endfunction()
