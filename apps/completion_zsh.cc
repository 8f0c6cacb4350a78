// thinpipe completion zsh: one function per command, each a call of zsh's _arguments. Names with two underscores are
// helpers: _thinpipe_runs is that of the command `runs`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "completion.h"

namespace thinpipe {
namespace {

// Text inside one part of a specification of _arguments.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    if (letter == ':' || letter == '[' || letter == ']' || letter == '\\') result += '\\';
    result += letter;
  }
  return result;
}

// "_thinpipe_lab_exactness"
std::string function_of(const Command& command) {
  auto name = "_" + command.path;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

// ":message:action"
std::string value_spec(const Argument& argument) {
  const auto action = [&]() -> std::string {
    switch (argument.values) {
      case Values::kFiles:
        return "_files";
      case Values::kFolders:
        return "_files -/";
      case Values::kRuns:
        return "__thinpipe_runs";
      case Values::kKeys:
        return "__thinpipe_keys";
      case Values::kWords:
        return fmt::format("({})", fmt::join(argument.words, " "));
      case Values::kNone:
        break;
    }
    return " ";
  }();
  return fmt::format(":{}:{}", escaped(argument.placeholder), action);
}

void add_option(const Argument& argument, std::vector<std::string>& specs) {
  const auto others = fmt::format("({})", fmt::join(argument.names, " "));
  for (const auto& name : argument.names) {
    const auto before = argument.repeats ? std::string("*") : others;
    const auto equals = argument.takes_value && name.starts_with("--") ? "=" : "";
    specs.push_back(shell_quoted(fmt::format("{}{}{}[{}]{}", before, name, equals, escaped(argument.help),
                                             argument.takes_value ? value_spec(argument) : "")));
  }
}

void add_function(const Command& command, std::string& script) {
  std::vector<std::string> specs, names;
  std::string branches;
  int place = 0;
  for (const auto& argument : command.arguments) {
    if (!argument.positional) {
      add_option(argument, specs);
      continue;
    }
    const auto which = argument.repeats ? std::string("*") : fmt::format("{}", ++place);
    specs.push_back(shell_quoted(which + (argument.required ? "" : ":") + value_spec(argument)));
  }
  for (const auto& one : command.commands) {
    names.push_back(shell_quoted(fmt::format("{}:{}", one.name, one.help)));
    branches += fmt::format("        {}) {} && ret=0 ;;\n", one.name, function_of(one));
    add_function(one, script);
  }
  script += fmt::format("{}() {{\n", function_of(command));
  if (command.commands.empty()) {
    script += fmt::format("  _arguments -s \\\n    {}\n}}\n\n", fmt::join(specs, " \\\n    "));
    return;
  }
  script += fmt::format(
      "  local context state state_descr line curcontext=$curcontext ret=1\n  typeset -A opt_args\n"
      "  _arguments -C -s \\\n    {} \\\n    '1:command:->command' '*::argument:->argument' && ret=0\n"
      "  local -a commands=(\n    {}\n  )\n"
      "  case $state in\n    command) _describe -t commands command commands && ret=0 ;;\n"
      "    argument)\n      curcontext=${{curcontext%:*:*}}:thinpipe-$line[1]:\n"
      "      case $line[1] in\n{}      esac ;;\n  esac\n  return ret\n}}\n\n",
      fmt::join(specs, " \\\n    "), fmt::join(names, "\n    "), branches);
}

constexpr std::string_view kHelpers = R"zsh(
# The program itself, not the launcher of a clone, which might begin to build.
__thinpipe_ask() {
  local program=$__thinpipe_program
  local built=${program:h}/build/release/apps/thinpipe
  [[ $program == */* && -x $built ]] && program=$built
  $program completion $1 2>/dev/null
}

__thinpipe_runs() {
  local -a known=(${(f)"$(__thinpipe_ask runs)"})
  local expl ret=1
  _wanted runs expl run compadd -a known && ret=0
  _files -/ && ret=0
  return ret
}

__thinpipe_keys() {
  local -a lines=(${(f)"$(__thinpipe_ask keys)"}) values
  if compset -P '*='; then
    values=(${=${(M)lines:#${IPREFIX#--set=}$'\t'*}#*$'\t'})
    compadd -a values
  else
    compadd -S '' -- ${lines%%$'\t'*}
  fi
}

)zsh";

}  // namespace

std::string zsh_completion(const Command& program) {
  std::string functions;
  add_function(program, functions);
  // As a file in $fpath it is the body of _thinpipe and must do the work itself; sourced, it only registers.
  return fmt::format(
      "#compdef thinpipe\n# zsh completion for thinpipe, made by: thinpipe completion zsh\n{}{}"
      "__thinpipe_main() {{\n  local __thinpipe_program=$words[1]\n  _thinpipe \"$@\"\n}}\n\n"
      "if [[ $funcstack[1] == _thinpipe ]]; then\n  compdef __thinpipe_main thinpipe\n  __thinpipe_main \"$@\"\nelse\n"
      "  compdef __thinpipe_main thinpipe\nfi\n",
      kHelpers, functions);
}

}  // namespace thinpipe
