// What every machine of a run derives from its seed and must derive alike (METHOD 1): the frozen token table and the
// first basis. The coordinator tells their hash; a machine that finds another is not let to train with numbers of its
// own.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "config/run_config.h"

namespace thinpipe {

// SHA-256 in hex; empty for a dense model, whose stages share nothing that is derived. A table that is a file is left
// out: it is named by its own hash.
std::string seed_numbers_sha256(const RunConfig& config, int64_t vocab);

// `told` is what the coordinator found; empty: it found nothing to compare.
Status check_seed_numbers(const RunConfig& config, int64_t vocab, const std::string& told);

}  // namespace thinpipe
