// Short names for actions, and the schedules and warm-ups that the tests of schedules share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "pipeline/schedule.h"

namespace thinpipe::test {

constexpr Action rf(int64_t m) { return {ActionKind::kReceiveForward, m}; }
constexpr Action f(int64_t m) { return {ActionKind::kForward, m}; }
constexpr Action sf(int64_t m) { return {ActionKind::kSendForward, m}; }
constexpr Action rb(int64_t m) { return {ActionKind::kReceiveBackward, m}; }
constexpr Action b(int64_t m) { return {ActionKind::kBackward, m}; }
constexpr Action sb(int64_t m) { return {ActionKind::kSendBackward, m}; }

// p-1-i: what 1f1b needs on links without delay.
inline std::vector<int64_t> classic_warmup(int64_t stages) {
  std::vector<int64_t> warmup;
  for (int64_t stage = 0; stage < stages; ++stage) warmup.push_back(stages - 1 - stage);
  return warmup;
}

// Depths that do not increase, each at most the one before (the first at most M + 2, more than there are microbatches).
inline std::vector<int64_t> random_warmup(int64_t stages, int64_t microbatches, const CounterRng& rng) {
  std::vector<int64_t> warmup;
  auto depth = static_cast<uint64_t>(microbatches + 2);
  for (int64_t stage = 0; stage < stages; ++stage) {
    depth = rng.below(depth + 1, static_cast<uint64_t>(stage));
    warmup.push_back(static_cast<int64_t>(depth));
  }
  return warmup;
}

inline std::vector<Schedule> all_kinds(int64_t stages, int64_t microbatches) {
  const CounterRng rng(7, static_cast<uint64_t>(stages * 1000 + microbatches));
  return {make_gpipe(stages, microbatches), make_1f1b(stages, microbatches, classic_warmup(stages)),
          make_1f1b(stages, microbatches, random_warmup(stages, microbatches, rng)),
          make_forward_only(stages, microbatches)};
}

}  // namespace thinpipe::test
