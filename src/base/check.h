// TP_CHECK: always on, for what only a fault in this program can break. Never for input.
#pragma once

#include <fmt/format.h>

#include <string>

namespace thinpipe {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace thinpipe

#define TP_CHECK(condition, ...)                                                            \
  do {                                                                                      \
    if (!(condition)) [[unlikely]]                                                          \
      ::thinpipe::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
