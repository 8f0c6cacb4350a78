// How `thinpipe generate` picks the next token. Apart from generator.h because the command line needs no libtorch.
#pragma once

#include <cstdint>

namespace thinpipe {

struct PickOptions {
  double temperature = 0.8;  // logits are divided by it; 0: always the likeliest token
  int64_t top_k = 40;        // only the K most likely tokens; 0: all
  double top_p = 0.95;       // of those, the fewest that hold this share of the probability
  uint64_t seed = 1;
};

}  // namespace thinpipe
