// The progress line of a command that works through a known number of things: "exporting: 12 of 40 tensors, about 30s
// left". One line on a terminal, rewritten in place and removed at the end; nothing elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "base/line.h"

namespace thinpipe {

// For one thread. Who prints results meanwhile does so in above_live_line().
class WorkLine {
 public:
  // On standard error. `what` is done to `total` things, which are called `things`: "exporting", "tensors".
  WorkLine(std::string what, std::string things, uint64_t total);
  // Writes to `out` if it is a terminal, which `live` says. The clock must outlive this object.
  WorkLine(std::string what, std::string things, uint64_t total, std::FILE* out, bool live, const Clock& clock);
  ~WorkLine() { line_.clear(); }

  // So many more are done. The time left assumes that the others take as long as those so far.
  void add(uint64_t count = 1);

 private:
  std::string text() const;
  void show();

  const std::string what_, things_;
  const uint64_t total_;
  uint64_t done_ = 0;
  const bool live_;
  const Clock& clock_;
  const TimePoint start_;
  LiveLine line_;
};

}  // namespace thinpipe
