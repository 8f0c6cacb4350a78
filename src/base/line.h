// Words for a person: text from elsewhere made fit for one line, and the word that a mistyped one probably meant.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace thinpipe {

inline constexpr size_t kMaxLineBytes = 1000;

// At most kMaxLineBytes of what somebody else said, with a blank for every control character.
std::string one_line(std::string_view text);

// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours), as for "unknown key
// 'modle.d'; did you mean 'model.d'?"; "" when none is near enough to be a plausible slip.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace thinpipe
