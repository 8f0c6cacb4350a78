#include "complete.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/keys.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

// bash cuts words at = and :, so the script cuts the line itself, and drops what stands before the last = if readline
// does.
constexpr std::string_view kBash = R"bash(# bash completion for thinpipe, printed by: thinpipe completion bash
_thinpipe() {
  local words kind begun
  read -a words <<<"${COMP_LINE:0:COMP_POINT}x" # the x keeps an empty last word
  begun=${words[-1]%x} words[-1]=$begun
  mapfile -t COMPREPLY < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
  kind=${COMPREPLY[0]} COMPREPLY=("${COMPREPLY[@]:1}")
  COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
  [[ $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${begun%"${begun##*=}"}"}")
  [[ $kind == nospace ]] && compopt -o nospace 2>/dev/null
  [[ $kind == file || $kind == directory ]] || return 0
  compopt -o filenames 2>/dev/null
  [[ $begun == --*=* ]] && begun=${begun#*=}
  mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -A "$kind" -- "$begun")
}
complete -F _thinpipe thinpipe
)bash";

// As a file in $fpath it is the body of _thinpipe and must do the work itself; sourced, it only registers.
constexpr std::string_view kZsh = R"zsh(#compdef thinpipe
# zsh completion for thinpipe, printed by: thinpipe completion zsh
_thinpipe() {
  local -a lines=("${(@f)$(${~words[1]} __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
  local kind=$lines[1] found=1
  shift lines
  lines=("${(@)${(@)lines//:/\\:}/$'\t'/:}")
  if [[ $kind == nospace ]]; then
    _describe thinpipe lines -S '' && found=0
  elif (( $#lines )); then
    _describe thinpipe lines && found=0
  fi
  [[ $kind == (file|directory) && $PREFIX == --*=* ]] && compset -P '*='
  [[ $kind == file ]] && _files && found=0
  [[ $kind == directory ]] && _files -/ && found=0
  return found
}
if [[ $funcstack[1] == _thinpipe ]]; then _thinpipe "$@"; else compdef _thinpipe thinpipe; fi
)zsh";

// What is offered for one word.
class Answer {
 public:
  // prefix: what stands before the value in the same word, "--log-level=".
  explicit Answer(std::string begun, std::string prefix = "") : begun_(std::move(begun)), prefix_(std::move(prefix)) {}

  const std::string& begun() const { return begun_; }
  void say(std::string_view kind) { kind_ = kind; }
  void offer(const std::string& word, std::string_view help = "") {
    if (word.starts_with(begun_)) words_ += fmt::format("{}{}\t{}\n", prefix_, word, help);
  }
  std::string text() const { return fmt::format("{}\n{}", kind_, words_); }

 private:
  std::string begun_, prefix_, words_;
  std::string_view kind_ = "words";
};

// "model.d=", or the words that a key takes if its = has been typed.
void offer_settings(Answer& answer) {
  const bool has_key = answer.begun().find('=') != std::string::npos;
  for (const auto& key : config_keys()) {
    if (!has_key) answer.offer(key.full() + "=", key.help);
    for (const auto& word : key.words) {
      if (has_key) answer.offer(key.full() + "=" + word);
    }
  }
  if (!has_key) answer.say("nospace");
}

std::string offered(const Value& value, Answer answer) {
  switch (value.offer) {
    case Offer::kNothing:
      break;
    case Offer::kFiles:
      answer.say("file");
      break;
    case Offer::kRuns:
      for (const auto& run : known_runs()) answer.offer(run.filename().string());
      [[fallthrough]];
    case Offer::kFolders:
      answer.say("directory");
      break;
    case Offer::kKeys:
      for (const auto& key : config_keys()) answer.offer(key.full(), key.help);
      break;
    case Offer::kSettings:
      offer_settings(answer);
      break;
    case Offer::kWords:
      for (const auto& word : value.words) answer.offer(word);
      break;
  }
  return answer.text();
}

// What the words before the last one have led to.
struct Place {
  const Command* command = nullptr;
  const Value* value = nullptr;  // of an option whose value comes next
  size_t arguments = 0;          // given so far, without options
};

// The value of the option of that name; null if there is none, or if it is a flag.
const Value* value_of(const Command& command, const std::string& name) {
  const auto* option = command.get_option_no_throw(name);
  return option == nullptr ? nullptr : command.value_of(option);
}

Place walk(const Command& program, std::span<const std::string> words) {
  Place place{&program};
  for (const auto& word : words) {
    if (place.value != nullptr) {
      place.value = nullptr;
    } else if (word.starts_with('-')) {
      place.value = value_of(*place.command, word);
    } else {
      const auto& commands = place.command->commands();
      const auto found =
          std::find_if(commands.begin(), commands.end(), [&](const Command* one) { return one->get_name() == word; });
      if (found != commands.end())
        place = {*found};
      else
        ++place.arguments;
    }
  }
  return place;
}

std::string offered_options(const Command& command, Answer answer) {
  for (const auto* option : command.get_options()) {
    if (option->get_group().empty() || option->get_positional()) continue;
    for (const auto& name : option->get_lnames()) answer.offer("--" + name, option->get_description());
  }
  return answer.text();
}

}  // namespace

std::string complete(const Command& program, std::span<const std::string> words) {
  if (words.empty()) return complete(program, std::vector<std::string>{""});
  const auto place = walk(program, words.first(words.size() - 1));
  const auto& begun = words.back();
  if (place.value != nullptr) return offered(*place.value, Answer(begun));
  if (const auto equals = begun.find('='); begun.starts_with("--") && equals != std::string::npos) {
    const auto* value = value_of(*place.command, begun.substr(0, equals));
    return offered(value == nullptr ? Value{} : *value, Answer(begun.substr(equals + 1), begun.substr(0, equals + 1)));
  }
  if (begun.starts_with('-')) return offered_options(*place.command, Answer(begun));
  Answer answer(begun);
  for (const auto* command : place.command->commands()) answer.offer(command->get_name(), command->get_description());
  if (!place.command->commands().empty()) return answer.text();
  const auto arguments = place.command->get_options([](const CLI::Option* one) { return one->get_positional(); });
  if (place.arguments >= arguments.size()) return answer.text();
  return offered(*place.command->value_of(arguments[place.arguments]), answer);
}

std::string_view completion_script(std::string_view shell) { return shell == "bash" ? kBash : kZsh; }

}  // namespace thinpipe
