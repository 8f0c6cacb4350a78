// thinpipe(1) as roff, made from the command tree.
#pragma once

#include <string>

#include "command_tree.h"

namespace thinpipe {

// date: of the version, "2026-01-31".
std::string man_page(const Command& program, std::string_view version, std::string_view date);

}  // namespace thinpipe
