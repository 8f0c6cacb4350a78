// --help: CLI11's own formatter with our groups, widths and wrapping.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace thinpipe {

// At most 100 columns wide, as long as no footer is wider. --help-all is laid out so that help2man makes the manual
// page from it: every command is a heading that ends in a colon with indented text below it.
std::shared_ptr<CLI::FormatterBase> help_formatter();

class Command;
// Prints the help of the command that the words name, one inside the other. Throws UserError if there is none.
void print_help(const Command& program, const std::vector<std::string>& words);
// What a newcomer sees who types only the program's name.
std::string first_steps();

}  // namespace thinpipe
