// The numbers that every machine of a run derives from its seed and that must be equal on all (METHOD 1): the frozen
// token table and the first basis. The coordinator sends their hash; a machine with a different hash is refused.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "config/run_config.h"

namespace thinpipe {

// SHA-256 in hex; empty for a dense model, whose stages share no derived numbers. A table from a file is not included:
// it is named by its own hash.
std::string seed_numbers_sha256(const RunConfig& config, int64_t vocab);

// `told` is the coordinator's hash; empty: nothing to compare.
Status check_seed_numbers(const RunConfig& config, int64_t vocab, const std::string& told);

}  // namespace thinpipe
