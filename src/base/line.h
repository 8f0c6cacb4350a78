// Text for the terminal: makes foreign text safe for one line, suggests the nearest known word for a typo, and shows
// progress.
#pragma once

#include <cstddef>
#include <cstdio>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace thinpipe {

// The offset of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7: no surrogates, no overlong
// forms, nothing above U+10FFFF); text.size() if all of it is valid.
size_t valid_utf8_prefix(std::string_view text);
// The text with "?" for every byte that is not part of well-formed UTF-8.
std::string valid_utf8(std::string_view text);

inline constexpr size_t kMaxLineBytes = 1000;

// Cuts foreign text to kMaxLineBytes and replaces every control character with a space. The result is valid UTF-8.
std::string one_line(std::string_view text);

// The first `most` bytes of foreign text, followed by "..." if it was longer. Control characters become \u000a and the
// like, so that the result fits on one line.
std::string escaped(std::string_view text, size_t most = std::string_view::npos);
// escaped() in double quotes, with a backslash before quotes and backslashes: a valid JSON and TOML string.
std::string in_quotes(std::string_view text, size_t most = std::string_view::npos);

// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours), as for "unknown key
// 'modle.d'; did you mean 'model.d'?". Returns "" if no candidate is close enough to be a plausible typo.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// The first `columns` characters of the text. It must be valid UTF-8; every character counts as one column.
std::string_view first_columns(std::string_view text, size_t columns);

// A progress line: rewritten in place on a terminal, printed every few seconds elsewhere. On a terminal it is cut to
// the width, because a line that wraps cannot be rewritten. For one thread.
class LiveLine {
 public:
  // Writes to `out`; pass `live` if it is a terminal. The clock must outlive this object.
  LiveLine(std::FILE* out, bool live, const Clock& clock) : out_(out), live_(live), clock_(clock) {}
  ~LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  // Whether enough time has passed since the last show(). Callers may ask before they format an expensive text.
  bool is_due() const;
  void show(std::string_view text);
  // How many columns a text may have to be shown whole; asks the terminal each time.
  size_t room() const;
  // Prints a permanent line above the live one.
  void note(std::string_view text);
  // clear() removes the live line; end() keeps it and moves to the next line.
  void clear();
  void end();

 private:
  friend void above_live_line(const std::function<void()>& print);
  // Call these with the terminal's lock held.
  void draw();
  void erase();

  std::FILE* out_;
  bool live_;
  const Clock& clock_;
  std::optional<TimePoint> last_;
  std::string text_;
  bool up_ = false;
};

// Lets any thread print whole lines: removes the live line, if this process shows one, calls `print` and shows it
// again.
void above_live_line(const std::function<void()>& print);

}  // namespace thinpipe
