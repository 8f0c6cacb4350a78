// Words for a person: text from elsewhere made fit for one line, the word that a mistyped one probably meant, and a
// line that shows progress.
#pragma once

#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace thinpipe {

inline constexpr size_t kMaxLineBytes = 1000;

// At most kMaxLineBytes of what somebody else said, with a blank for every control character.
std::string one_line(std::string_view text);

// The first `most` bytes of what somebody else wrote, with "..." behind them if that is not all of it. Control
// characters become \u000a and the like, so that it stays on one line.
std::string escaped(std::string_view text, size_t most = std::string_view::npos);
// The same in double quotes, with a backslash before quotes and backslashes: a string of JSON and of TOML.
std::string in_quotes(std::string_view text, size_t most = std::string_view::npos);

// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours), as for "unknown key
// 'modle.d'; did you mean 'model.d'?"; "" when none is near enough to be a plausible slip.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// One line about something that takes its time: rewritten in place on a terminal, printed now and then elsewhere. One
// thread.
class LiveLine {
 public:
  // Writes to `out`; `live` when it is a terminal. The clock must outlive it.
  LiveLine(std::FILE* out, bool live, const Clock& clock) : out_(out), live_(live), clock_(clock) {}

  // Whether enough time has passed since the last show(): what takes work to put into words can ask first.
  bool is_due() const;
  void show(std::string_view text);
  // A line that stays, above the live one.
  void note(std::string_view text);
  // Removes the live line, or leaves it as it stands and goes on below it.
  void clear();
  void end();

 private:
  std::FILE* out_;
  bool live_;
  const Clock& clock_;
  std::optional<TimePoint> last_;
  bool up_ = false;
};

}  // namespace thinpipe
