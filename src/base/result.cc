#include "base/result.h"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>

namespace thinpipe {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  fmt::print(stderr, "thinpipe: internal fault at {}:{}: {} ({})\n", file, line, message, condition);
  std::fflush(stderr);
  std::abort();
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         std::string_view(error.what()).find("DefaultCPUAllocator: ") != std::string_view::npos;
}

}  // namespace thinpipe
