# thinpipe_unity(TARGET): where CMAKE_UNITY_BUILD is on, the files of a target in parts of about equal size, at most sixteen each.
function(thinpipe_unity target)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  math(EXPR parts "(${count} + 15) / 16")
  math(EXPR size "(${count} + ${parts} - 1) / ${parts}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# thinpipe_headers(TARGET KEYWORD): TARGET sees the headers of the folder that it is declared in, as "FOLDER/file.h", and
# those of no other. They are found through a link in the build folder, because an -I of src/ would show all folders.
function(thinpipe_headers target keyword)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(shown ${PROJECT_BINARY_DIR}/include/${folder})
  file(MAKE_DIRECTORY ${shown})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${shown}/${folder} SYMBOLIC)
  target_include_directories(${target} ${keyword} ${shown})
endfunction()

# thinpipe_library(NAME SOURCES ... [DEPENDS ...] [USES ...] [LINKS ...] [TORCH]): the library of one folder.
#   DEPENDS: folders that its headers include; whoever names this one may include them, too.
#   USES:    folders that only its .cc files include.
#   LINKS:   third-party targets.
# An #include of any other folder does not compile.
function(thinpipe_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS;USES;LINKS" ${ARGN})
  add_library(thinpipe_${name} STATIC ${ARG_SOURCES})
  thinpipe_unity(thinpipe_${name})
  thinpipe_headers(thinpipe_${name} PUBLIC)
  list(TRANSFORM ARG_DEPENDS PREPEND thinpipe_)
  list(TRANSFORM ARG_USES PREPEND thinpipe_)
  target_link_libraries(thinpipe_${name} PUBLIC thinpipe_flags ${ARG_DEPENDS} ${ARG_LINKS} PRIVATE ${ARG_USES})
  if(ARG_TORCH)
    target_link_libraries(thinpipe_${name} PUBLIC thinpipe_torch)
    target_precompile_headers(thinpipe_${name} REUSE_FROM thinpipe_torch_pch)
  else()
    target_precompile_headers(thinpipe_${name} REUSE_FROM thinpipe_plain_pch)
  endif()
endfunction()
