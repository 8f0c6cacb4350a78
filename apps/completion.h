// Completion scripts for bash and zsh, made from the command tree. They are tables with a little code: the program is
// only called for what the tree does not know, the names of runs and the keys of a config.
#pragma once

#include <string>

#include "command_tree.h"

namespace thinpipe {

std::string bash_completion(const Command& program);
std::string zsh_completion(const Command& program);

// For the scripts: one key a line, "model.d="; behind a tab the values it may have, where they can be listed.
std::string completion_keys();
// Likewise: one name a line.
std::string completion_runs();

// 'text' as one word of a shell.
std::string shell_quoted(std::string_view text);

}  // namespace thinpipe
