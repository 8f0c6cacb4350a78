// How far a worker's compute thread is, for the thread that sends heartbeats. The numbers only grow.
#pragma once

#include <atomic>
#include <cstdint>

namespace thinpipe {

struct WorkProgress {
  enum class Waits : uint8_t { kNothing, kPrevious, kNext };  // for which neighbour

  std::atomic<uint64_t> done = 0;   // passes, pieces of downloaded files
  std::atomic<uint64_t> saved = 0;  // pieces of a checkpoint that were written or sent
  std::atomic<Waits> waits = Waits::kNothing;
  // Of the messages between stages, since somebody took them.
  std::atomic<uint64_t> bytes_sent = 0, bytes_received = 0;
};

// Says that the compute thread waits for a neighbour as long as it exists.
class WaitingFor {
 public:
  WaitingFor(WorkProgress* progress, WorkProgress::Waits neighbour) : progress_(progress) {
    if (progress_ != nullptr) progress_->waits = neighbour;
  }
  ~WaitingFor() {
    if (progress_ != nullptr) progress_->waits = WorkProgress::Waits::kNothing;
  }
  WaitingFor(const WaitingFor&) = delete;
  WaitingFor& operator=(const WaitingFor&) = delete;

 private:
  WorkProgress* const progress_;
};

}  // namespace thinpipe
