// From data.corpus to what training reads: a tokenizer and two token shards in one folder of the cache, made once. Also
// the line that shows a user how far it is.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "config/run_config.h"
#include "text/prepared.h"

namespace thinpipe {

// What is being done, and how much of it. total_bytes is 0 while unknown. Called often, on the calling thread.
using PrepareProgress = std::function<void(std::string_view phase, uint64_t done_bytes, uint64_t total_bytes)>;

// The prepared corpus for these settings under cache_root/prepared/, made if it is not there. The source is read in
// either case, to know that it is still the same. A folder appears whole or not at all: an interrupted call (killed, a
// full disk, an exception from `progress`) leaves nothing that is ever used, and the next preparation removes what
// killed processes have left. Processes that want the same corpus at once wait for the first. Memory is bounded,
// whatever the size of the corpus. `threads` tokenise, at most 8 (0: one per core); the result does not depend on their
// number. Throws UserError.
PreparedCorpus prepare_corpus(const DataConfig& data, const std::filesystem::path& cache_root,
                              const PrepareProgress& progress = {}, unsigned threads = 0);

// The bytes of the tokenizer that prepare_corpus would train for these settings, on training documents only. Throws
// UserError.
std::string train_corpus_tokenizer(const DataConfig& data, const PrepareProgress& progress = {});

// Shows progress to a user: one line, rewritten in place on a terminal and removed at the end; elsewhere a line now and
// then. It is a PrepareProgress: pass it with std::ref. One thread.
class PrepareLine {
 public:
  // Writes to `out`; `live` if that is a terminal. The clock must outlive it.
  PrepareLine(std::FILE* out, bool live, const Clock& clock) : out_(out), live_(live), clock_(clock) {}
  ~PrepareLine();
  PrepareLine(const PrepareLine&) = delete;
  PrepareLine& operator=(const PrepareLine&) = delete;

  void operator()(std::string_view phase, uint64_t done_bytes, uint64_t total_bytes);

 private:
  // As much as is known of "tokenizing 120.0 of 1000.0 MB, 9.5 MB/s, 1m32s left".
  std::string line(uint64_t done_bytes, uint64_t total_bytes) const;

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
