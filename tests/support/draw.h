// Random integers for tests.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace thinpipe::test {

// In [0, bound), a function of (rng, index). As good as uniform for the small bounds of tests.
inline uint64_t below(const CounterRng& rng, uint64_t bound, uint64_t index) { return rng.bits64(index) % bound; }

}  // namespace thinpipe::test
