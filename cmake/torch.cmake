# thinpipe_torch: the system's libtorch, or the one in THINPIPE_TORCH_FOLDER, which ./thinpipe and the first cmake take from
# the environment variable THINPIPE_TORCH. Only the CPU library and c10 are linked: no Python, none of the distributed
# parts. Autograd is part of torch_cpu; only lab/ uses it, for the reference model.
add_library(thinpipe_torch INTERFACE)

function(thinpipe_refuse_torch why)
  message(FATAL_ERROR "THINPIPE_TORCH = \"${THINPIPE_TORCH_FOLDER}\": ${why}")
endfunction()

# Not cached: the folder may change from one cmake to the next.
if(THINPIPE_TORCH_FOLDER)
  if(NOT IS_ABSOLUTE "${THINPIPE_TORCH_FOLDER}" OR NOT IS_DIRECTORY "${THINPIPE_TORCH_FOLDER}")
    thinpipe_refuse_torch("no such folder; needs the absolute path of a libtorch, with include/ and lib/")
  endif()
  set(torch_includes ${THINPIPE_TORCH_FOLDER}/include)
  foreach(file include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
    if(NOT EXISTS ${THINPIPE_TORCH_FOLDER}/${file})
      thinpipe_refuse_torch("not a libtorch, it has no ${file}")
    endif()
  endforeach()
  set(torch_libraries ${THINPIPE_TORCH_FOLDER}/lib/libtorch_cpu.so ${THINPIPE_TORCH_FOLDER}/lib/libc10.so)
  set(torch_cuda_library ${THINPIPE_TORCH_FOLDER}/lib/libtorch_cuda.so)
  # Their names of functions differ if it was built with the old strings of libstdc++, as some of PyTorch's downloads are.
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/torch_links.cc CONTENT "#include <c10/util/Exception.h>
int main() { c10::detail::torchCheckFail(\"\", \"\", 0, std::string()); }
")
  try_compile(torch_links ${PROJECT_BINARY_DIR}/torch_links ${PROJECT_BINARY_DIR}/torch_links.cc
              CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${torch_includes} LINK_LIBRARIES ${torch_libraries}
              CXX_STANDARD 20 OUTPUT_VARIABLE torch_links_output)
  if(NOT torch_links)
    file(WRITE ${PROJECT_BINARY_DIR}/torch_links.log "${torch_links_output}")
    thinpipe_refuse_torch("a program does not link with it; needs one for this machine with the C++11 ABI \
(${PROJECT_BINARY_DIR}/torch_links.log)")
  endif()
  message(STATUS "libtorch: ${THINPIPE_TORCH_FOLDER}")
else()
  find_path(TORCH_INCLUDE_DIR ATen/ATen.h REQUIRED)
  find_library(TORCH_CPU_LIBRARY torch_cpu REQUIRED)
  find_library(C10_LIBRARY c10 REQUIRED)
  find_library(TORCH_CUDA_LIBRARY torch_cuda)
  set(torch_includes ${TORCH_INCLUDE_DIR})
  set(torch_libraries ${TORCH_CPU_LIBRARY} ${C10_LIBRARY})
  set(torch_cuda_library ${TORCH_CUDA_LIBRARY})
endif()

target_include_directories(thinpipe_torch SYSTEM INTERFACE ${torch_includes})
target_link_libraries(thinpipe_torch INTERFACE ${torch_libraries})
# A libtorch with CUDA registers its kernels when this library is loaded; nothing refers to it by name.
if(EXISTS "${torch_cuda_library}")
  target_link_options(thinpipe_torch INTERFACE -Wl,--no-as-needed,${torch_cuda_library},--as-needed)
endif()
