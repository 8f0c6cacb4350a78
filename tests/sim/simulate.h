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

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace thinpipe::sim
