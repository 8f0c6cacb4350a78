// --help: what a command does, its options, examples; for the program, the commands by what one wants to do.
#pragma once

#include <string>

#include "command_tree.h"

namespace thinpipe {

// Gives every command its group and its help. Called by main when all commands have been added; `app` must outlive the
// parsing.
void add_help(CLI::App& app);

// At most 100 columns wide, as long as no example is wider.
std::string help_text(const Command& command);

}  // namespace thinpipe
