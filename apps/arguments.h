// Options that several commands declare in the same way.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace thinpipe {

// An option that may be given several times, each time with one value.
inline CLI::Option* add_repeatable(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                                   const std::string& help) {
  return command.add_option(name, values, help)->expected(1)->take_all()->allow_extra_args(false);
}

// --set section.key=value
inline void add_overrides(CLI::App& command, std::vector<std::string>& overrides,
                          const std::string& help = "override a key: --set model.d=512") {
  add_repeatable(command, "--set", overrides, help);
}

}  // namespace thinpipe
