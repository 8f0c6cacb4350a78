// Does a tokenizer give back what it was given? Text there and back, with the first difference named.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer.h"

namespace thinpipe {

// decode(encode(text)) is `text`, but for U+2581, which may read back as a space (tokenizer.h). An error names the
// first byte that differs, what stands there and what came back; `name` is what it calls the text.
Status check_round_trip(const Tokenizer& tokenizer, std::string_view text, const std::string& name);

// Valid UTF-8 of up to a hundred characters of all kinds - letters, runs of spaces, line ends, control characters,
// emoji, any code point there is - the same for the same number.
std::string random_text(uint64_t number);

}  // namespace thinpipe
