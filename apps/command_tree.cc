#include "command_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <utility>

namespace thinpipe {
namespace {

// Names that mean the same wherever they stand, with or without dashes.
constexpr std::array<std::pair<std::string_view, Values>, 21> kByName{{
    {"run", Values::kRuns},          {"runs", Values::kRuns},        {"resume", Values::kRuns},
    {"set", Values::kKeys},          {"config", Values::kFiles},     {"corpus", Values::kFiles},
    {"file", Values::kFiles},        {"files", Values::kFiles},      {"input", Values::kFiles},
    {"output", Values::kFiles},      {"out", Values::kFiles},        {"to", Values::kFiles},
    {"from", Values::kFiles},        {"path", Values::kFiles},       {"tokenizer", Values::kFiles},
    {"model", Values::kRuns},        {"checkpoint", Values::kFiles}, {"what", Values::kFiles},
    {"prompt-file", Values::kFiles}, {"folder", Values::kFolders},   {"run-dir", Values::kFolders},
}};

constexpr std::array<std::pair<std::string_view, Values>, 6> kByType{{{"FILE", Values::kFiles},
                                                                      {"PATH", Values::kFiles},
                                                                      {"DIR", Values::kFolders},
                                                                      {"FOLDER", Values::kFolders},
                                                                      {"RUN", Values::kRuns},
                                                                      {"KEY=VALUE", Values::kKeys}}};

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& letter : result) letter = letter == '-' ? '_' : static_cast<char>(std::toupper(letter));
  return result;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  for (const char letter : text) {
    if (letter == separator)
      parts.emplace_back();
    else
      parts.back() += letter;
  }
  return parts;
}

// CLI11 tells an option's type and the descriptions of its checks as one text: "INT:INT in [1 - 65536]",
// "TEXT:{a,b}", "TEXT:FILE", or what the command gave as type_name().
struct Type {
  std::string name;   // "TEXT", "INT", "HOST:PORT"
  std::string check;  // "INT in [1 - 65536]", "{a,b}", ""
};

Type type_of(const CLI::Option& option) {
  const auto text = option.get_type_name();
  for (const std::string_view builtin : {"TEXT", "INT", "UINT", "FLOAT", "BOOLEAN", "ENUM"}) {
    if (text == builtin) return {text, ""};
    if (text.starts_with(std::string(builtin) + ":")) return {std::string(builtin), text.substr(builtin.size() + 1)};
  }
  return {text, ""};
}

void set_values(Argument& argument, const Type& type, std::string_view plain_name) {
  const auto brace = type.check.find('{');
  if (brace != std::string::npos && type.check.ends_with('}')) {
    argument.words = split(std::string_view(type.check).substr(brace + 1, type.check.size() - brace - 2), ',');
  } else if (type.name.find('|') != std::string::npos) {
    argument.words = split(type.name, '|');
  }
  if (!argument.words.empty()) {
    argument.values = Values::kWords;
    return;
  }
  const auto given = type.check.substr(0, type.check.find('('));  // "PATH(existing)"
  for (const auto& [name, values] : kByType) {
    if (type.name == name || given == name) argument.values = values;
  }
  if (type.name != "TEXT" || argument.values != Values::kNone) return;
  for (const auto& [name, values] : kByName) {
    if (plain_name == name) argument.values = values;
  }
  if (plain_name.ends_with("-file")) argument.values = Values::kFiles;
  if (plain_name.ends_with("-dir")) argument.values = Values::kFolders;
}

std::string placeholder_of(const Argument& argument, const Type& type, std::string_view plain_name) {
  if (argument.positional) return upper(plain_name);
  if (!argument.words.empty()) return fmt::format("{}", fmt::join(argument.words, "|"));
  if (type.name == "INT" || type.name == "UINT") return "N";
  if (type.name == "FLOAT") return "X";
  if (type.name != "TEXT") return type.name;
  switch (argument.values) {
    case Values::kFiles:
      return "FILE";
    case Values::kFolders:
      return "DIR";
    case Values::kRuns:
      return "RUN";
    case Values::kKeys:
      return "KEY=VALUE";
    default:
      return upper(plain_name);
  }
}

// "INT in [1 - 65536]" -> "1 to 65536"
std::string limits_of(const std::string& check) {
  const auto open = check.find(" in ["), middle = check.find(" - ");
  if (open == std::string::npos || middle == std::string::npos || !check.ends_with(']')) return "";
  const auto low = open + 5;
  return fmt::format("{} to {}", check.substr(low, middle - low), check.substr(middle + 3, check.size() - middle - 4));
}

Argument describe_option(const CLI::Option& option) {
  Argument argument;
  argument.positional = option.get_positional();
  if (argument.positional) {
    argument.names = {option.get_name(true, false)};
  } else {
    for (const auto& name : option.get_snames()) argument.names.push_back("-" + name);
    for (const auto& name : option.get_lnames()) argument.names.push_back("--" + name);
  }
  const auto dashes = argument.names.back().find_first_not_of('-');
  const auto plain_name = argument.names.back().substr(dashes == std::string::npos ? 0 : dashes);
  argument.takes_value = option.get_items_expected_max() > 0;
  argument.repeats =
      option.get_expected_max() > 1 || option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  argument.required = option.get_required();
  argument.help = option.get_description();
  if (!argument.takes_value) return argument;
  const auto type = type_of(option);
  set_values(argument, type, plain_name);
  argument.placeholder = placeholder_of(argument, type, plain_name);
  argument.limits = limits_of(type.check);
  argument.fallback = option.get_default_str();
  return argument;
}

}  // namespace

std::string Argument::shown() const {
  if (positional) return placeholder + (repeats ? "..." : "");
  const auto all = fmt::format("{}", fmt::join(names, ", "));
  return placeholder.empty() ? all : fmt::format("{} {}", all, placeholder);
}

std::string Command::usage() const {
  std::string text = path;
  const auto is_option = [](const Argument& argument) { return !argument.positional; };
  if (std::any_of(arguments.begin(), arguments.end(), is_option)) text += " [OPTIONS]";
  for (const auto& argument : arguments) {
    if (!argument.positional) continue;
    text += argument.required ? " " + argument.shown() : " [" + argument.shown() + "]";
  }
  return commands.empty() ? text : text + " COMMAND";
}

Command describe(const CLI::App& app, const std::string& parent) {
  Command command;
  command.name = app.get_name();
  command.path = parent.empty() ? command.name : parent + " " + command.name;
  command.help = app.get_description();
  command.group = app.get_group();
  command.footer = app.get_footer();
  const auto add_options = [&](const CLI::App& from) {
    for (const auto* option : from.get_options()) {
      if (!option->get_group().empty()) command.arguments.push_back(describe_option(*option));
    }
  };
  add_options(app);
  for (const auto* one : app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); })) {
    if (one->get_name().empty())
      add_options(*one);  // a group of options is an app without a name
    else
      command.commands.push_back(describe(*one, command.path));
  }
  return command;
}

std::vector<std::string> wrapped(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  std::istringstream words{std::string(text)};
  std::string word;
  while (words >> word) {
    if (lines.empty() || lines.back().size() + 1 + word.size() > width)
      lines.push_back(word);
    else
      lines.back() += " " + word;
  }
  return lines;
}

std::vector<FooterLine> footer_lines(std::string_view footer) {
  std::vector<FooterLine> lines;
  for (const auto& line : split(footer, '\n')) {
    const auto start = line.find_first_not_of(' ');
    if (start == std::string::npos) continue;
    lines.push_back({line.substr(start), start > 0});
  }
  return lines;
}

}  // namespace thinpipe
