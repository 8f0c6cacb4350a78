// What a person sees while a corpus is prepared: one line, rewritten in place on a terminal, printed now and then
// elsewhere; nothing is left of it when all was there already.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace thinpipe {

// A PrepareProgress: hand it over with std::ref. One thread.
class PrepareLine {
 public:
  // Writes to `out`; `live` when it is a terminal. The clock must outlive it.
  PrepareLine(std::FILE* out, bool live, const Clock& clock) : out_(out), live_(live), clock_(clock) {}
  ~PrepareLine();
  PrepareLine(const PrepareLine&) = delete;
  PrepareLine& operator=(const PrepareLine&) = delete;

  void operator()(std::string_view phase, uint64_t done_bytes, uint64_t total_bytes);

  // "tokenizing 120.0 of 1000.0 MB, 9.5 MB/s, 1m32s left": what is known of it. Rate and time left count from the
  // phase's first report, so that what an earlier process has done does not flatter this one. Public for tests.
  std::string line(uint64_t done_bytes, uint64_t total_bytes) const;

 private:
  std::FILE* out_;
  bool live_;
  const Clock& clock_;
  std::string phase_;
  uint64_t first_bytes_ = 0;  // at the phase's first report
  TimePoint phase_start_;
  TimePoint last_print_;
  bool up_ = false;
};

}  // namespace thinpipe
