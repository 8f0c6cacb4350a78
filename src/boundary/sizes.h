// How many bytes a message across a cut has (docs/wire.md), from the config alone: boundaries, links and the planner
// ask here and nowhere else. Needs no libtorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "config/run_config.h"

namespace thinpipe {

// A token id: two bytes where V <= 65536, else four.
size_t id_bytes(int64_t vocab);
// The ids of B sequences: per sequence its length (four bytes) and T + 1 ids.
size_t ids_bytes(int64_t sequences, int64_t length, int64_t vocab);

// The payload of one message across any cut of the run, in bytes. All 0 where nothing can cross: one stage, or a width
// that the pack refuses (check_boundary).
struct BoundarySizes {
  size_t forward = 0;      // ids and stream
  size_t backward = 0;     // the stream's gradient
  size_t end_of_step = 0;  // the next basis, on its way upstream; 0: none is ever sent

  size_t largest() const;
};
// Of a microbatch of train.microbatch sequences, or of this many.
BoundarySizes boundary_sizes(const RunConfig& config, int64_t vocab);
BoundarySizes boundary_sizes(const RunConfig& config, int64_t vocab, int64_t sequences);

}  // namespace thinpipe
