// How commands declare what they take. CLI11 parses; a Command also remembers what a shell may offer for each value,
// which CLI11 has no place for. Help (help.h) and completion (complete.h) read both.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace thinpipe {

// What a value is: how help shows it, and what a shell may offer for it.
enum class Offer { kNothing, kFiles, kFolders, kRuns, kKeys, kSettings, kWords };
struct Value {
  std::string shown;  // "FILE"
  Offer offer = Offer::kNothing;
  std::vector<std::string> words = {};  // for kWords; nothing else is accepted then
  bool may_be_empty = false;            // else an empty value is refused: it is a script's unset variable
};
inline const Value kFile{"FILE", Offer::kFiles};
inline const Value kFolder{"DIR", Offer::kFolders};
inline const Value kRun{"RUN", Offer::kRuns};  // the folder or the name of one
Value one_of(std::vector<std::string> words);

class Command : public CLI::App {
 public:
  // help: one line without a full stop.
  Command(const std::string& name, const std::string& help);

  // A command inside this one. Help lists it under the title `group`, or hides it if that is empty.
  Command& command(const std::string& name, const std::string& help, const std::string& group = "Commands");
  const std::vector<Command*>& commands() const { return commands_; }

  // An option ("--out") or an argument that is known by its place ("CONFIG"). A vector takes one value each time the
  // option is given. `help` is completed by the variable's present value, unless it names a default itself.
  template <class T>
  CLI::Option* value(const std::string& name, T& variable, const Value& value, const std::string& help) {
    auto* option = add_option(name, variable, with_default(help, variable));
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      option->expected(1)->take_all()->allow_extra_args(false);
    }
    return remember(option, value);
  }
  // A number from `low` to `high`.
  template <class T>
  CLI::Option* number(const std::string& name, T& variable, std::type_identity_t<T> low, std::type_identity_t<T> high,
                      const std::string& help) {
    const auto limits = fmt::format("{}; {} to {}", help, low, high);
    return value(name, variable, {std::is_integral_v<T> ? "N" : "X"}, limits)->check(CLI::Range(low, high));
  }

  // What several commands declare in the same way.
  void run_argument(std::string& run);
  void config_argument(std::string& config);
  void corpus_argument(std::string& corpus);
  // --run-dir and --name
  void run_place_options(std::string& folder, std::string& name);
  void run_dir_option(std::string& folder);
  void set_option(std::vector<std::string>& overrides,
                  const std::string& help = "override a config key; may be repeated");
  void json_flag(bool& json);

  // Null for a flag.
  const Value* value_of(const CLI::Option* option) const;

 private:
  template <class T>
  static std::string with_default(const std::string& help, const T& variable) {
    if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      const auto text = fmt::format("{}", variable);
      if (!text.empty() && help.find("default:") == std::string::npos)
        return fmt::format("{}; default: {}", help, text);
    }
    return help;
  }
  CLI::Option* remember(CLI::Option* option, const Value& value);

  std::vector<Command*> commands_;  // all but hidden ones; CLI::App owns them
  std::map<const CLI::Option*, Value> values_;
};

}  // namespace thinpipe
