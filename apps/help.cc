#include "help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <vector>

namespace thinpipe {
namespace {

constexpr size_t kWidth = 100;
constexpr size_t kWidestLeft = 30;  // where an option is longer, what it does stands on the next line

struct Group {
  std::string_view title;
  std::vector<std::string_view> commands;
};

// The one list that is kept by hand: what a person wants, and the commands for it in the order of use. A test holds
// every command that is not hidden to be in it.
const std::vector<Group>& groups() {
  static const std::vector<Group> all{
      {"Train on this machine", {"train"}},
      {"Train with others", {"serve", "invite", "join", "doctor", "kick"}},
      {"Look at runs", {"runs", "show", "status", "pause", "resume"}},
      {"Use a model", {"generate", "eval", "export", "import"}},
      {"Data", {"data", "tokenizer"}},
      {"Measure", {"lab", "bench"}},
      {"This program", {"completion", "man"}},
  };
  return all;
}

constexpr std::string_view kFirstThings =
    "First things to try:\n"
    "  thinpipe train              a small model on the King James Bible; a few minutes on two cores\n"
    "  thinpipe runs               what has been trained here, and how far it came\n"
    "  thinpipe doctor             can this machine take part in somebody's run?\n"
    "Examples of each command: thinpipe COMMAND --help. All of it: thinpipe --help-all, or man thinpipe.";

std::string_view group_of(std::string_view command) {
  for (const auto& group : groups()) {
    if (std::find(group.commands.begin(), group.commands.end(), command) != group.commands.end()) return group.title;
  }
  return "Other commands";
}

// Where it stands in its group; behind all others when in none.
ptrdiff_t rank_of(const Command& command) {
  ptrdiff_t rank = 99;
  for (const auto& group : groups()) {
    const auto place = std::find(group.commands.begin(), group.commands.end(), command.name);
    if (group.title == command.group && place != group.commands.end()) rank = place - group.commands.begin();
  }
  return rank;
}

struct Entry {
  std::string left;
  std::string right;
};

std::string block(std::string_view title, const std::vector<Entry>& entries) {
  if (entries.empty()) return "";
  size_t column = 0;
  for (const auto& entry : entries) {
    if (entry.left.size() + 4 <= kWidestLeft) column = std::max(column, entry.left.size() + 4);
  }
  if (column == 0) column = kWidestLeft;
  auto text = fmt::format("\n{}:\n", title);
  for (const auto& [left, right] : entries) {
    auto line = "  " + left;
    for (const auto& part : wrapped(right, kWidth - column)) {
      if (line.size() + 2 > column) {
        text += line + "\n";
        line.clear();
      }
      text += fmt::format("{:<{}}{}\n", line, column, part);
      line.clear();
    }
    if (!line.empty()) text += line + "\n";
  }
  return text;
}

std::string told(const Argument& argument) {
  std::string notes;
  const auto note = [&](const std::string& words) { notes += (notes.empty() ? "" : "; ") + words; };
  if (!argument.limits.empty()) note(argument.limits);
  if (!argument.fallback.empty()) note("default " + argument.fallback);
  if (argument.required && !argument.positional) note("required");
  return notes.empty() ? argument.help : fmt::format("{} ({})", argument.help, notes);
}

std::vector<Entry> entries_of(const Command& command, bool positional) {
  std::vector<Entry> entries;
  for (const auto& argument : command.arguments) {
    if (argument.positional == positional) entries.push_back({argument.shown(), told(argument)});
  }
  return entries;
}

// In the order of the groups, then of the commands.
std::string command_blocks(const Command& command) {
  std::vector<std::string> titles;
  for (const auto& group : groups()) titles.emplace_back(group.title);
  auto commands = command.commands;
  std::stable_sort(commands.begin(), commands.end(),
                   [](const Command& a, const Command& b) { return rank_of(a) < rank_of(b); });
  for (const auto& one : commands) {
    if (std::find(titles.begin(), titles.end(), one.group) == titles.end()) titles.push_back(one.group);
  }
  std::string text;
  for (const auto& title : titles) {
    std::vector<Entry> entries;
    for (const auto& one : commands) {
      if (one.group == title) entries.push_back({fmt::format("{:<10}", one.name), one.help});
    }
    text += block(title, entries);
  }
  return text;
}

std::string footer_text(const std::string& footer) {
  std::string text;
  for (const auto& line : footer_lines(footer)) {
    if (line.example) {
      text += fmt::format("  {}\n", line.text);
    } else {
      for (const auto& part : wrapped(line.text, kWidth)) text += part + "\n";
    }
  }
  return text.empty() ? text : "\n" + text;
}

std::string all_help(const Command& command) {
  auto text = help_text(command);
  for (const auto& one : command.commands) text += "\n" + all_help(one);
  return text;
}

void set_formatter(CLI::App& app, const std::string& parent) {
  app.formatter_fn([parent](const CLI::App* one, const std::string&, CLI::AppFormatMode mode) {
    const auto command = describe(*one, parent);
    return mode == CLI::AppFormatMode::All ? all_help(command) : help_text(command);
  });
  if (auto* help = app.get_help_ptr()) help->description("show this and end");
  const auto path = parent.empty() ? app.get_name() : parent + " " + app.get_name();
  for (auto* command : app.get_subcommands([](CLI::App*) { return true; })) set_formatter(*command, path);
}

}  // namespace

std::string help_text(const Command& command) {
  auto about = command.help;
  if (!about.empty()) about[0] = static_cast<char>(std::toupper(about[0]));
  if (!about.ends_with('.') && !about.ends_with('?')) about += '.';
  auto text = fmt::format("Usage: {}\n\n", command.usage());
  for (const auto& line : wrapped(about, kWidth)) text += line + "\n";
  return text + command_blocks(command) + block("Arguments", entries_of(command, true)) +
         block("Options", entries_of(command, false)) + footer_text(command.footer);
}

void add_help(CLI::App& app) {
  for (auto* command : app.get_subcommands([](CLI::App* one) { return !one->get_group().empty(); })) {
    command->group(std::string(group_of(command->get_name())));
    for (auto* nested : command->get_subcommands([](CLI::App* one) { return !one->get_group().empty(); })) {
      if (!nested->get_name().empty()) nested->group("Commands");
    }
  }
  app.footer(std::string(kFirstThings));
  app.set_help_all_flag("--help-all", "show the help of every command and end");
  set_formatter(app, "");
}

}  // namespace thinpipe
