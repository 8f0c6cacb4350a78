// "unknown key 'modle.d'; did you mean 'model.d'?" - the known word closest to a mistyped one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace thinpipe {

// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours); "" when none is near
// enough to be a plausible slip.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace thinpipe
