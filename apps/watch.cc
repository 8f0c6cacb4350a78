#include "watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "base/result.h"

namespace thinpipe {
namespace {

constexpr auto kRedraw = std::chrono::seconds(1);
constexpr const char* kClearScreen = "\033[H\033[2J";

}  // namespace

void watch(const std::function<void()>& print) {
  if (::isatty(STDOUT_FILENO) == 0) throw UserError("--watch redraws a terminal, and standard output is none");
  static char buffer[1 << 16];
  std::setvbuf(stdout, buffer, _IOFBF, sizeof buffer);  // so that a screen appears at once
  for (bool first = true;; first = false) {
    fmt::print("{}", kClearScreen);
    try {
      print();
    } catch (const UserError& error) {
      if (first) throw;
      fmt::print("{}\n", error.what());
      return;
    }
    std::fflush(stdout);
    std::this_thread::sleep_for(kRedraw);
  }
}

}  // namespace thinpipe
