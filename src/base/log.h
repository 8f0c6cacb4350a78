// Diagnostics go to standard error, one line each. A command's results go to standard output instead.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>
#include <utility>

namespace thinpipe {

// level: "debug", "info", "warn" or "error". Throws UserError for anything else.
void set_log_level(std::string_view level);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}

// Sends every line to standard error in the house format. Called once, by the program.
void init_log();

}  // namespace thinpipe
