# thinpipe_unity(TARGET): where CMAKE_UNITY_BUILD is on, the files of a target in parts of about equal size, at most sixteen each.
function(thinpipe_unity target)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  math(EXPR parts "(${count} + 15) / 16")
  math(EXPR size "(${count} + ${parts} - 1) / ${parts}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# thinpipe_library(NAME SOURCES ... [DEPENDS ...] [LINKS ...] [TORCH]): the library of one folder of src/.
#   DEPENDS: other folders it may include; they are passed on to whoever links this one.
#   LINKS:   third-party targets.
function(thinpipe_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS;LINKS" ${ARGN})
  add_library(thinpipe_${name} STATIC ${ARG_SOURCES})
  thinpipe_unity(thinpipe_${name})
  list(TRANSFORM ARG_DEPENDS PREPEND thinpipe_)
  target_link_libraries(thinpipe_${name} PUBLIC thinpipe_flags ${ARG_DEPENDS} ${ARG_LINKS})
  if(ARG_TORCH)
    target_link_libraries(thinpipe_${name} PUBLIC thinpipe_torch)
    target_precompile_headers(thinpipe_${name} REUSE_FROM thinpipe_torch_pch)
  else()
    target_precompile_headers(thinpipe_${name} REUSE_FROM thinpipe_plain_pch)
  endif()
endfunction()
