#include "line_editor.h"

#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <iostream>

namespace thinpipe {

LineEditor::LineEditor() : terminal_(::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) {
  if (!terminal_) return;
  std::setlocale(LC_CTYPE, "");  // else libedit takes the bytes of a character for several
  using_history();
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  if (!terminal_) {
    fmt::print("{}", prompt);
    std::fflush(stdout);
    std::string line;
    return std::getline(std::cin, line) ? std::optional(line) : std::nullopt;
  }
  char* typed = readline(prompt.c_str());
  if (typed == nullptr) return std::nullopt;
  const std::string line = typed;
  std::free(typed);
  if (!line.empty()) add_history(line.c_str());
  return line;
}

}  // namespace thinpipe
