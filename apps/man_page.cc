#include "man_page.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <utility>

namespace thinpipe {
namespace {

// Text as roff shows it: a backslash is one, a dash that begins a word is the one people type, and no line is taken for
// a request.
std::string prose_line(std::string_view text) {
  std::string result;
  char before = ' ';
  for (const char letter : text) {
    if (letter == '\\')
      result += "\\e";
    else if (letter == '-' && std::string_view(" -(`\"").find(before) != std::string_view::npos)
      result += "\\-";
    else
      result += letter;
    before = letter;
  }
  return result.starts_with('.') || result.starts_with('\'') ? "\\&" + result : result;
}

// In lines of a length that people who read the source are used to.
std::string prose(std::string_view text) {
  std::string result;
  for (const auto& line : wrapped(text, 76)) result += (result.empty() ? "" : "\n") + prose_line(line);
  return result;
}

// What is typed: every dash is the one people type.
std::string typed(std::string_view text) {
  std::string result;
  for (const char letter : text) result += letter == '\\' ? "\\e" : letter == '-' ? "\\-" : std::string(1, letter);
  return result.starts_with('.') || result.starts_with('\'') ? "\\&" + result : result;
}

std::string ended(const std::string& text) { return text.ends_with('.') || text.ends_with('?') ? text : text + "."; }

std::string sentence(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(text[0]));
  return ended(text);
}

using Terms = std::array<std::pair<std::string_view, std::string_view>, 8>;

// A part of fixed text: each a term and what it means; an empty term ends it.
std::string section(std::string_view title, const Terms& terms) {
  auto text = fmt::format(".SH {}\n", title);
  for (const auto& [term, meaning] : terms) {
    if (!term.empty()) text += fmt::format(".TP\n.I {}\n{}\n", typed(term), prose(meaning));
  }
  return text;
}

constexpr Terms kFiles{{
    {"~/.local/share/thinpipe/", "The data folder. THINPIPE_DATA_DIR puts it elsewhere."},
    {"~/.local/share/thinpipe/runs/NAME/",
     "A run: config.toml with every key as used, metrics.jsonl and timing.jsonl with a line per step, "
     "model.safetensors once it is done, checkpoints/, logs/, run.sqlite with what the coordinator decided, and "
     "identity/, which lets its owner bring anybody into the run."},
    {"~/.local/share/thinpipe/prepared/", "Corpora as tokens, each with its tokenizer; made again when removed."},
    {"~/.local/share/thinpipe/corpora/", "Corpora that come with a program, such as kjv.txt."},
    {"~/.local/share/thinpipe/joined/", "What this machine keeps of runs it has joined."},
    {"/usr/share/doc/thinpipe/", "The documentation, with every config key in docs/config.md, and example configs."},
}};

constexpr Terms kEnvironment{{
    {"THINPIPE_DATA_DIR", "The data folder."},
    {"XDG_DATA_HOME", "Where data folders are, if not in ~/.local/share; thinpipe/ in there is used."},
    {"HOME", "Your home folder, if neither of them is set."},
    {"GOMP_SPINCOUNT",
     "How long a thread that waits keeps its core; 1000 for the processes of a run unless it is set."},
}};

constexpr Terms kExits{{
    {"0", "Done. Also serve after one ctrl-C, when the checkpoint is written, and join after one, when it may leave."},
    {"1", "A fault of the program itself."},
    {"2",
     "What was given is refused, or the run failed: one line on standard error says what is wrong and, where that is "
     "known, what would be right."},
    {"130",
     "Stopped. train and data prepare by ctrl-C: the last line says how to go on. serve and join by a second ctrl-C: "
     "they end at once."},
}};

std::string argument_text(const Argument& argument) {
  std::string notes;
  if (!argument.limits.empty()) notes += fmt::format(" From {}.", argument.limits);
  if (!argument.fallback.empty()) notes += fmt::format(" Default: {}.", argument.fallback);
  if (argument.required) notes += " Required.";
  return fmt::format(".TP\n.B {}\n{}\n", typed(argument.shown()), prose(ended(argument.help) + notes));
}

std::string man_footer(const std::string& footer) {
  std::string text;
  bool in_example = false;
  for (const auto& line : footer_lines(footer)) {
    if (line.example != in_example) text += line.example ? ".PP\n.nf\n.RS 4\n" : ".RE\n.fi\n";
    if (!line.example) text += ".PP\n";
    in_example = line.example;
    text += (line.example ? typed(line.text) : prose(line.text)) + "\n";
  }
  return in_example ? text + ".RE\n.fi\n" : text;
}

bool is_help(const Argument& argument) { return argument.names.back() == "--help"; }

// A command, then those inside it.
std::string command_text(const Command& command) {
  auto text = fmt::format(".SS {}\n{}\n", typed(command.usage()), prose(sentence(command.help)));
  for (const bool positional : {true, false}) {
    for (const auto& argument : command.arguments) {
      if (argument.positional == positional && !is_help(argument)) text += argument_text(argument);
    }
  }
  text += man_footer(command.footer);
  for (const auto& one : command.commands) text += command_text(one);
  return text;
}

}  // namespace

std::string man_page(const Command& program, std::string_view version, std::string_view date) {
  auto text = fmt::format(
      ".\\\" Made by: thinpipe man\n.TH THINPIPE 1 {} \"thinpipe {}\" \"User Commands\"\n"
      ".SH NAME\nthinpipe \\- train transformer language models over ordinary internet links\n"
      ".SH SYNOPSIS\n.B thinpipe\n[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n"
      ".SH DESCRIPTION\n",
      date, version);
  text += prose(
      "thinpipe cuts a transformer language model into stages, one per machine, and trains it as a pipeline over "
      "ordinary internet links. The model is built so that what crosses a cut lies in a small subspace; only its "
      "coordinates are sent, which loses nothing. Without anything else, thinpipe train trains a small model on this "
      "machine, each stage a process of its own.");
  text += "\n.PP\nWhere a command takes a run, it is a folder or a name that\n.B thinpipe runs\nlists.\n.SH OPTIONS\n";
  for (const auto& argument : program.arguments) text += argument_text(argument);
  text += ".SH COMMANDS\n";
  for (const auto& command : program.commands) text += command_text(command);
  text += section("FILES", kFiles) + section("ENVIRONMENT", kEnvironment) + section("EXIT STATUS", kExits);
  return text + ".SH SEE ALSO\n.BR bible (1),\nREADME.md and docs/ in /usr/share/doc/thinpipe\n";
}

}  // namespace thinpipe
