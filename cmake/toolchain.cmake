# Warnings, sanitizers, ccache, third-party libraries and the precompiled headers.
add_library(thinpipe_flags INTERFACE)
target_compile_options(thinpipe_flags INTERFACE -Wall -Wextra -Wpedantic -Werror -Wshadow -Wnon-virtual-dtor
                       -Wno-missing-field-initializers
                       # g++ 12 sees overlaps in std::string and uninitialised parts of std::variant that are not there
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # With several files as one, g++ 12 takes a .cc for a header (subobject-linkage) and inlines more, where it sees sizes that
  # cannot be. The preset dev, without unity builds, keeps these warnings.
  target_compile_options(thinpipe_flags INTERFACE -Wno-subobject-linkage -Wno-array-bounds -Wno-stringop-overflow
                         -Wno-stringop-overread -Wno-free-nonheap-object)
endif()

if(THINPIPE_SANITIZE)
  target_compile_options(thinpipe_flags INTERFACE -fsanitize=${THINPIPE_SANITIZE} -fno-omit-frame-pointer -g)
  target_compile_definitions(thinpipe_flags INTERFACE THINPIPE_SANITIZED)
  target_link_options(thinpipe_flags INTERFACE -fsanitize=${THINPIPE_SANITIZE})
  if(THINPIPE_SANITIZE STREQUAL "address")
    target_compile_options(thinpipe_flags INTERFACE -fsanitize=undefined -fno-sanitize-recover=undefined)
    target_link_options(thinpipe_flags INTERFACE -fsanitize=undefined)
  endif()
endif()

if(THINPIPE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "THINPIPE_FUZZ needs clang, which has libFuzzer: use the preset fuzz")
  endif()
  # The libraries too, or the fuzzer would not see which inputs reach new code; the targets add -fsanitize=fuzzer.
  target_compile_options(thinpipe_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
                         -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g)
  target_compile_definitions(thinpipe_flags INTERFACE THINPIPE_SANITIZED)
  target_link_options(thinpipe_flags INTERFACE -fsanitize=address,undefined)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # The sloppiness is what ccache asks for when precompiled headers are in use. CCACHE_DEPEND takes the list of headers from
  # the compiler: without it, ccache preprocesses every file that it does not know a second time.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
      ${CCACHE_PROGRAM})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(thinpipe_flags INTERFACE -fpch-preprocess)
  endif()
endif()

find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(spdlog REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)

# By their libraries: gRPC's own CMake config asks for packages that nothing here uses.
find_path(GRPC_INCLUDE_DIR grpcpp/grpcpp.h REQUIRED)
find_library(GRPCPP_LIBRARY grpc++ REQUIRED)
find_library(GRPC_LIBRARY grpc REQUIRED)
find_library(GPR_LIBRARY gpr REQUIRED)
find_library(PROTOBUF_LIBRARY protobuf REQUIRED)
find_library(ABSL_SYNCHRONIZATION_LIBRARY absl_synchronization REQUIRED)  # gRPC's headers hold its mutexes
find_program(PROTOC protoc REQUIRED)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
add_library(thinpipe_grpc INTERFACE)
target_include_directories(thinpipe_grpc SYSTEM INTERFACE ${GRPC_INCLUDE_DIR})
target_link_libraries(thinpipe_grpc INTERFACE ${GRPCPP_LIBRARY} ${GRPC_LIBRARY} ${GPR_LIBRARY} ${PROTOBUF_LIBRARY}
                      ${ABSL_SYNCHRONIZATION_LIBRARY} Threads::Threads)

if(THINPIPE_WITH_TORCH)
  include(cmake/torch.cmake)
  # Without it, at::parallel_for in our own code is a plain loop. The thread sanitizer does not understand libgomp.
  if(NOT THINPIPE_SANITIZE STREQUAL "thread")
    target_compile_options(thinpipe_torch INTERFACE -fopenmp)
    target_link_options(thinpipe_torch INTERFACE -fopenmp)
  endif()

  # OpenBLAS built on OpenMP shares libtorch's thread pool: one setting for both, and a product called from inside a
  # parallel loop stays on its thread. The RPATH (not RUNPATH: it must reach libtorch's own lookup of libblas.so.3) makes
  # that build win where a machine has several.
  find_library(OPENBLAS_LIBRARY openblas PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH)
  if(OPENBLAS_LIBRARY)
    get_filename_component(OPENBLAS_DIR ${OPENBLAS_LIBRARY} DIRECTORY)
    target_link_options(thinpipe_torch INTERFACE -Wl,--disable-new-dtags,-rpath,${OPENBLAS_DIR})
  else()
    find_library(OPENBLAS_LIBRARY openblas REQUIRED)
  endif()
  find_path(CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-openmp ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp REQUIRED)
  target_include_directories(thinpipe_torch SYSTEM INTERFACE ${CBLAS_INCLUDE_DIR})
  target_link_libraries(thinpipe_torch INTERFACE ${OPENBLAS_LIBRARY})
endif()

# Precompiled headers, one per weight; whole folders reuse them. A header earns its place by being slow to parse or by being
# included nearly everywhere.
function(thinpipe_precompile name)
  cmake_parse_arguments(ARG "" "" "LINKS;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.cc CONTENT "")
  add_library(thinpipe_${name} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${name}.cc)
  set_target_properties(thinpipe_${name} PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(thinpipe_${name} PRIVATE thinpipe_flags ${ARG_LINKS})
  target_precompile_headers(thinpipe_${name} PRIVATE ${ARG_HEADERS})
endfunction()

set(plain_headers <algorithm> <chrono> <filesystem> <functional> <map> <memory> <optional> <set> <span> <string> <variant>
                  <vector> <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
thinpipe_precompile(plain_pch LINKS spdlog::spdlog nlohmann_json::nlohmann_json HEADERS ${plain_headers})
if(THINPIPE_WITH_TORCH)
  # ATen's headers alone cost about ten seconds per file.
  thinpipe_precompile(torch_pch LINKS thinpipe_torch spdlog::spdlog nlohmann_json::nlohmann_json
                      HEADERS <ATen/ATen.h> <ATen/Parallel.h> ${plain_headers})
endif()
