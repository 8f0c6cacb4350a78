// What somebody else said, made fit for a log or a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace thinpipe {

inline constexpr size_t kMaxLineBytes = 1000;

// At most kMaxLineBytes of it, with a blank for every control character.
std::string one_line(std::string_view text);

}  // namespace thinpipe
