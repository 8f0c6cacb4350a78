// Plays simulations, one per seed, and shortens the plan of one that fails. For thinpipe-sim, ctest and `thinpipe bench
// sim`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace thinpipe::sim {

struct Outcome {
  std::string violation;  // empty: everything held
  uint64_t events = 0;
};

struct DiskSweep {
  uint64_t plays = 0;
  uint64_t file_operations = 0, sqlite_operations = 0;  // in the course of a run
  std::vector<std::string> violations;
};

class Simulator {
 public:
  Simulator();
  ~Simulator();

  // kept: which items of the plan happen; empty: all. traces: prints every event.
  Outcome play(uint64_t seed, const std::vector<bool>& kept = {}, bool traces = false) const;
  // The items without which the seed would not fail, as few as leaving out one after the other finds.
  std::vector<bool> shrink(uint64_t seed) const;
  // The violation, the shrunk list of what went wrong, and the command that plays it again.
  std::string report(uint64_t seed) const;
  // Plays a run for each way in which one operation on the coordinator's disk can fail: each `stride`th operation, with
  // EIO, ENOSPC and half a write, only that one or all from there on.
  DiskSweep fail_disk_operations(uint64_t stride) const;

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace thinpipe::sim
