// The size of a message across a cut (docs/wire.md), computed from the config alone. Boundaries, links and the planner
// all use this file. Needs no libtorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "config/run_config.h"

namespace thinpipe {

// Bytes of an id below `count`: two if count <= 65536, else four.
size_t id_bytes(int64_t count);
// Bytes of the ids of B sequences: per sequence its length (four bytes) and T + 1 ids.
size_t ids_bytes(int64_t sequences, int64_t length, int64_t vocab);

// "" or one sentence that says why nothing can cross the cuts of this run and what would be right.
std::string boundary_problem(const RunConfig& config);

// Bytes of a stream of `rows` tokens, or of its gradient, by boundary.kind. Needs a config without a
// boundary_problem().
size_t stream_bytes(const RunConfig& config, int64_t rows);

// Payload bytes of one message across any cut of the run. All 0 if nothing can cross: one stage, or a problem.
struct BoundarySizes {
  size_t forward = 0;      // ids and stream
  size_t backward = 0;     // the stream's gradient
  size_t end_of_step = 0;  // the next basis, sent upstream; 0: never sent

  size_t largest() const;
};
// For a microbatch of train.microbatch sequences, or of this many.
BoundarySizes boundary_sizes(const RunConfig& config, int64_t vocab);
BoundarySizes boundary_sizes(const RunConfig& config, int64_t vocab, int64_t sequences);

}  // namespace thinpipe
