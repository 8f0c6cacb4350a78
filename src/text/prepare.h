// Turns data.corpus into what training reads: a tokenizer and two token shards in one folder of the cache, made once.
// Also shows its progress to the user.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/line.h"
#include "config/run_config.h"
#include "text/prepared.h"

namespace thinpipe {

// The current phase and how much of it is done. total_bytes is 0 while unknown. Called often, on the calling thread.
using PrepareProgress = std::function<void(std::string_view phase, uint64_t done_bytes, uint64_t total_bytes)>;

// The prepared corpus for these settings under cache_root/prepared/; creates it if it does not exist. Reads the source
// in either case, to check that it has not changed. A folder appears complete or not at all: an interrupted call
// (killed, a full disk, an exception from `progress`) leaves nothing that is ever used, and the next preparation
// removes the remains of killed processes. Processes that want the same corpus wait for the first. Memory is bounded
// for a corpus of any size. `threads` threads tokenise, at most 8 (0: one per core); their number does not change the
// result. Throws UserError.
PreparedCorpus prepare_corpus(const DataConfig& data, const std::filesystem::path& cache_root,
                              const PrepareProgress& progress = {}, unsigned threads = 0);

// The bytes of the tokenizer that prepare_corpus would train for these settings, on training documents only. Throws
// UserError.
std::string train_corpus_tokenizer(const DataConfig& data, const PrepareProgress& progress = {});

// The vocabulary for this text if the user has chosen none: data.vocab, or fewer pieces for a small text. Reads the
// whole source. Throws UserError.
int64_t vocab_for_text(const DataConfig& data, const PrepareProgress& progress = {});

// What to tell the user about invalid bytes that were replaced or skipped; empty if there were none.
std::string invalid_line(const DataConfig& data, uint64_t count);

// Shows progress to a user: on a terminal one line that is rewritten in place and removed at the end; elsewhere a line
// every few seconds. It is a PrepareProgress: pass it with std::ref. For one thread.
class PrepareLine {
 public:
  // Writes to `out`; pass `live` if it is a terminal. The clock must outlive this object.
  PrepareLine(std::FILE* out, bool live, const Clock& clock) : out_(out, live, clock), live_(live), clock_(clock) {}
  ~PrepareLine() { out_.clear(); }
  PrepareLine(const PrepareLine&) = delete;
  PrepareLine& operator=(const PrepareLine&) = delete;

  void operator()(std::string_view phase, uint64_t done_bytes, uint64_t total_bytes);

 private:
  // The known parts of "tokenizing 120.0 of 1000.0 MB, 9.5 MB/s, 1m32s left".
  std::string line(uint64_t done_bytes, uint64_t total_bytes) const;

  LiveLine out_;
  bool live_;
  const Clock& clock_;
  std::string phase_;
  uint64_t first_bytes_ = 0;  // at the phase's first report
  TimePoint phase_start_;
};

}  // namespace thinpipe
