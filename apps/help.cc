#include "help.h"

#include <fmt/format.h>

#include <sstream>

#include "arguments.h"
#include "base/line.h"
#include "base/result.h"

namespace thinpipe {
namespace {

constexpr size_t kWidth = 78;   // with the indent of --help-all it fits into 80 columns
constexpr size_t kColumn = 28;  // where explanations begin
constexpr size_t kIndent = 2;   // of a command's text in --help-all

// With line ends at spaces, so that no line is longer than `width`.
std::string wrapped(const std::string& text, size_t width) {
  std::istringstream words(text);
  std::string result, word;
  size_t column = 0;
  while (words >> word) {
    const bool fits = column + 1 + word.size() <= width;
    if (column > 0) result += fits ? ' ' : '\n';
    column = column > 0 && fits ? column + 1 + word.size() : word.size();
    result += word;
  }
  return result;
}

// One that is too long has its comment on the next line, and its command is continued as a shell reads it.
std::string example(std::string line) {
  if (line.size() <= kWidth) return line;
  const std::string indent(6, ' ');
  std::string comment;
  if (const auto at = line.find("  # "); at != std::string::npos) {
    comment = "\n" + indent + line.substr(at + 2);
    line.resize(line.find_last_not_of(' ', at) + 1);
  }
  std::string result;
  while (line.size() > kWidth) {
    const auto cut = line.rfind(' ', kWidth - 2);
    if (cut == std::string::npos || cut <= indent.size()) break;
    result += line.substr(0, cut) + " \\\n";
    line = indent + line.substr(cut + 1);
  }
  return result + line + comment;
}

// "thinpipe lab exactness"
std::string path_of(const CLI::App* app) {
  return app->get_parent() == nullptr ? app->get_name() : path_of(app->get_parent()) + " " + app->get_name();
}

std::string indented(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    result += (line.empty() ? "" : std::string(kIndent, ' ') + line) + "\n";
  }
  return result;
}

bool is_shown(const CLI::App* command) { return !command->get_group().empty(); }

class Formatter : public CLI::Formatter {
 public:
  Formatter() {
    column_width(kColumn);
    label("Positionals", "Arguments");
    label("SUBCOMMAND", "COMMAND");
  }

  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    return positional ? option->get_name(true)
                      : CLI::detail::find_and_replace(option->get_name(false, true), ",", ", ");
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_option_text().empty() ? "" : " " + option->get_option_text();
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    const auto required = option->get_required() && !option->get_positional() ? "; required" : "";
    return wrapped(option->get_description() + required, kWidth - kColumn - kIndent);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_name(), wrapped(command->get_description(), kWidth - kColumn), kColumn);
    return out.str();
  }

  // Examples and the sentences below them.
  std::string make_footer(const CLI::App* app) const override {
    std::istringstream lines(app->get_footer());
    std::string result, sentences;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(' ') || line.ends_with(':')) {
        result += example(line) + "\n";
      } else {
        sentences += line + " ";
      }
    }
    if (!sentences.empty()) result += wrapped(sentences, kWidth) + "\n";
    return result;
  }

  // --help-all: the commands, then the program's own options, which begin a section of the manual page.
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    if (mode != CLI::AppFormatMode::All) return CLI::Formatter::make_help(app, name, mode);
    auto text = make_description(app) + make_usage(app, name);
    for (const auto* command : app->get_subcommands(is_shown)) text += "\n" + make_expanded(command);
    return text + make_groups(app, mode) + "\n" + make_footer(app);
  }

  // A command of --help-all, and those inside it.
  std::string make_expanded(const CLI::App* command) const override {
    auto usage = make_usage(command, path_of(command)).substr(get_label("Usage").size() + 2);
    usage.back() = ':';
    auto text = usage + "\n" +
                indented(make_description(command) + make_positionals(command) +
                         make_groups(command, CLI::AppFormatMode::Sub) + "\n" + make_footer(command));
    for (const auto* inner : command->get_subcommands(is_shown)) text += "\n" + make_expanded(inner);
    return text;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<Formatter>(); }

void print_help(const Command& program, const std::vector<std::string>& words) {
  const Command* command = &program;
  std::string path;
  for (const auto& word : words) {
    std::vector<std::string> names;
    const Command* inner = nullptr;
    for (const auto* one : command->commands()) {
      names.push_back(one->get_name());
      if (one->get_name() == word) inner = one;
    }
    path += (path.empty() ? "" : " ") + command->get_name();
    if (inner == nullptr) {
      const auto near = nearest(word, names);
      throw UserError(
          fmt::format("{} has no command {}{}", path, in_quotes(word, 60),
                      near.empty() ? fmt::format("; see {} --help", path) : fmt::format(": did you mean {}?", near)));
    }
    command = inner;
  }
  // Not App::help(): it would show the help of `thinpipe help`, the command that is being run.
  const auto text = command->get_formatter()->make_help(
      command, path.empty() ? command->get_name() : path + " " + command->get_name(), CLI::AppFormatMode::Normal);
  fmt::print("{}", text);
}

std::string first_steps() {
  return R"(thinpipe trains transformer language models over ordinary internet links.

Try first:
  thinpipe train              a small model on the King James Bible, in minutes
  thinpipe generate           text from it, when it is trained
  thinpipe doctor             can this machine take part in somebody's run?

Then:
  thinpipe train book.txt     on your own text, or a folder of texts
  thinpipe init               five questions, then a config for your machines
  thinpipe serve my.toml      a run that other machines join
  thinpipe join INVITE        hold a part of somebody's run
  thinpipe runs               what there is on this machine

`thinpipe help` lists all commands, `thinpipe help COMMAND` explains one.
)";
}

}  // namespace thinpipe
