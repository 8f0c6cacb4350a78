#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace thinpipe {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  fmt::print(stderr, "thinpipe: internal fault at {}:{}: {} ({})\n", file, line, message, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace thinpipe
