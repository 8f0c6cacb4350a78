// thinpipe completion bash. The script needs nothing of the bash-completion package, so that it can be sourced
// anywhere.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "completion.h"

namespace thinpipe {
namespace {

// How the script calls what an argument takes; with the words, where these are fixed.
std::string kind_of(const Argument& argument) {
  switch (argument.values) {
    case Values::kFiles:
      return "files";
    case Values::kFolders:
      return "folders";
    case Values::kRuns:
      return "runs";
    case Values::kKeys:
      return "keys";
    case Values::kWords:
      return fmt::format("words {}", fmt::join(argument.words, " "));
    case Values::kNone:
      break;
  }
  return "none";
}

// The cases of _thinpipe_command: what may follow a command.
void add_commands(const Command& command, std::string& cases) {
  std::vector<std::string> names, options, positionals;
  for (const auto& one : command.commands) names.push_back(one.name);
  for (const auto& argument : command.arguments) {
    if (!argument.positional) options.insert(options.end(), argument.names.begin(), argument.names.end());
    if (argument.positional) {
      positionals.push_back(shell_quoted((argument.repeats ? "* " : "") + kind_of(argument)));
    }
  }
  cases += fmt::format("    {})\n      commands={} options={}\n      positionals=({}) ;;\n", shell_quoted(command.path),
                       shell_quoted(fmt::format("{}", fmt::join(names, " "))),
                       shell_quoted(fmt::format("{}", fmt::join(options, " "))), fmt::join(positionals, " "));
  for (const auto& one : command.commands) add_commands(one, cases);
}

// The cases of _thinpipe_value: every option that takes one.
void add_values(const Command& command, std::string& cases) {
  for (const auto& argument : command.arguments) {
    if (argument.positional || !argument.takes_value) continue;
    std::vector<std::string> patterns;
    for (const auto& name : argument.names) patterns.push_back(shell_quoted(command.path + " " + name));
    cases += fmt::format("    {}) kind={} ;;\n", fmt::join(patterns, " | "), shell_quoted(kind_of(argument)));
  }
  for (const auto& one : command.commands) add_values(one, cases);
}

constexpr std::string_view kCode = R"bash(
# The program itself, not the launcher of a clone, which might begin to build.
_thinpipe_ask() {
  local program=$1 built=${1%/*}/build/release/apps/thinpipe
  [[ $program == */* && -x $built ]] && program=$built
  "$program" completion "$2" 2>/dev/null
}

# Fills COMPREPLY with what of a kind ("files", "words a b") begins with $3; $1 is the program as it was typed.
_thinpipe_offer() {
  local program=$1 kind=$2 begun=$3 key values
  case $kind in
    files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$begun") ;;
    folders) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$begun") ;;
    runs)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -W "$(_thinpipe_ask "$program" runs)" -- "$begun"; compgen -d -- "$begun") ;;
    keys)
      compopt -o nospace 2>/dev/null
      while IFS=$'\t' read -r key values; do
        if [[ $begun == "$key"* ]]; then
          mapfile -t COMPREPLY < <(compgen -P "$key" -W "$values" -- "${begun#"$key"}")
        elif [[ $key == "$begun"* ]]; then
          COMPREPLY+=("$key")
        fi
      done < <(_thinpipe_ask "$program" keys) ;;
    words*) mapfile -t COMPREPLY < <(compgen -W "${kind#words}" -- "$begun") ;;
  esac
}

_thinpipe() {
  local words=() rest=$COMP_LINE i
  # bash cuts words at = and :, which key=value and host:port hold: what no space parts is joined again.
  for ((i = 0; i <= COMP_CWORD; i++)); do
    if ((i > 0)) && [[ -n $rest && $rest != [[:space:]]* ]]; then
      words[-1]+=${COMP_WORDS[i]}
    else
      rest=${rest#"${rest%%[![:space:]]*}"}
      words+=("${COMP_WORDS[i]}")
    fi
    rest=${rest:${#COMP_WORDS[i]}}
  done
  local last=$((${#words[@]} - 1)) path=thinpipe kind commands options positionals place=0 word
  local begun=${words[last]} option=
  _thinpipe_command "$path"
  for ((i = 1; i < last; i++)); do
    word=${words[i]}
    if [[ $word == -* ]]; then
      _thinpipe_value "$path $word" && i=$((i + 1))
    elif [[ -n $commands && " $commands " == *" $word "* ]]; then
      path+=" $word"
      _thinpipe_command "$path"
    elif [[ ${positionals[place]} != '* '* ]]; then
      place=$((place + 1))
    fi
  done
  COMPREPLY=()
  if ((i > last)); then  # the word before is an option that takes a value: its kind is set
    _thinpipe_offer "${words[0]}" "$kind" "$begun"
  elif [[ $begun == --*=* ]] && _thinpipe_value "$path ${begun%%=*}"; then
    option=${begun%%=*}= begun=${begun#*=}
    _thinpipe_offer "${words[0]}" "$kind" "$begun"
  elif [[ $begun == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$begun")
  elif [[ -n $commands ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$begun")
  elif [[ -n ${positionals[place]} ]]; then
    _thinpipe_offer "${words[0]}" "${positionals[place]#'* '}" "$begun"
  fi
  ((${#COMPREPLY[@]})) || return 0
  if [[ $COMP_WORDBREAKS == *=* ]]; then  # then readline replaces only what stands behind the last =
    COMPREPLY=("${COMPREPLY[@]#"${begun%"${begun##*=}"}"}")
  else
    COMPREPLY=("${COMPREPLY[@]/#/$option}")
  fi
}

complete -F _thinpipe thinpipe
)bash";

}  // namespace

std::string bash_completion(const Command& program) {
  std::string commands, values;
  add_commands(program, commands);
  add_values(program, values);
  return fmt::format(
      "# bash completion for thinpipe, made by: thinpipe completion bash\n\n"
      "# What may follow a command: other commands, options, and what its arguments take; \"* \" where one repeats.\n"
      "_thinpipe_command() {{\n  commands= options= positionals=()\n  case $1 in\n{}  esac\n}}\n\n"
      "# Sets kind to what an option takes; false when it takes nothing.\n"
      "_thinpipe_value() {{\n  case $1 in\n{}    *) return 1 ;;\n  esac\n}}\n{}",
      commands, values, kCode);
}

}  // namespace thinpipe
