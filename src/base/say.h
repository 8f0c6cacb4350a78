// Sentences for people: folded to the width of their terminal, with counts and rates as one says them.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace thinpipe {

// The text with line ends at spaces, so that no line has more than `columns` characters; the rest of a line is indented
// by two spaces more than its beginning. A word that is longer than that stays whole, so that it can be copied.
// `before`: characters that stand before the text already.
std::string folded(std::string_view text, size_t columns, size_t before = 0);

// How many columns a line may have on the terminal that `out` writes to; npos if that is none.
size_t room_of(std::FILE* out);
// The same for what is a terminal; 79 if it does not say.
size_t room_of_terminal(std::FILE* out);

// Prints sentences to standard output, folded to the width of a terminal.
void say_text(std::string_view text);
template <typename... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  say_text(fmt::format(format, std::forward<Values>(values)...));
}

// "1 stage", "4 stages", "2 processes"
std::string counted(int64_t count, std::string_view noun);

// A measured rate: "8.2 Gbit/s", "64 Mbit/s", "2.2 Mbit/s", "300 kbit/s". Any number may come from a peer.
std::string rate_text(double bits_per_s);

}  // namespace thinpipe
