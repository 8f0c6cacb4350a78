// What running out of memory looks like when it is caught.
#pragma once

#include <exception>
#include <new>
#include <string_view>

namespace thinpipe {

// std::bad_alloc, or what libtorch throws in its place.
inline bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         std::string_view(error.what()).find("DefaultCPUAllocator: ") != std::string_view::npos;
}

}  // namespace thinpipe
