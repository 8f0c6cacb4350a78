// Completion: two short shell scripts that ask the program itself what fits, `thinpipe __complete WORDS...`.
#pragma once

#include <span>
#include <string>

#include "arguments.h"

namespace thinpipe {

// What fits for the last of `words`, which follow "thinpipe" on the command line and are unquoted. The first line of
// the answer tells the script what to do beside offering the words below it:
//   words      nothing
//   nospace    leave out the space behind a completed word
//   file       offer files too, directory: folders
// Each further line is a whole word, a tab and a short explanation.
std::string complete(const Command& program, std::span<const std::string> words);

// The script for "bash" or "zsh".
std::string_view completion_script(std::string_view shell);

}  // namespace thinpipe
