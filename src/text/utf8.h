// UTF-8: where text stops being valid, and where it may be cut into documents and training chunks.
#pragma once

#include <cstddef>
#include <string_view>

namespace thinpipe {

// The offset of the first byte that is no part of well-formed UTF-8 (Unicode 15, table 3-7: no surrogates, no overlong
// forms, nothing above U+10FFFF); text.size() when all of it is.
size_t valid_utf8_prefix(std::string_view text);

// The longest piece cut_length() takes without meeting a line end.
size_t cut_limit(size_t target);

// How much of non-empty `text` to take as the next piece: up to and with the first line end at or after `target` bytes;
// where none comes within cut_limit(target) bytes, up to the last character that fits. At least one byte. The text may
// be shorter than the limit only if nothing follows it.
size_t cut_length(std::string_view text, size_t target);

}  // namespace thinpipe
