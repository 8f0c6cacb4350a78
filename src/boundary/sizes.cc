#include "boundary/sizes.h"

#include <algorithm>

#include "boundary/pack.h"

namespace thinpipe {

size_t id_bytes(int64_t vocab) { return vocab <= (1 << 16) ? 2 : 4; }

size_t ids_bytes(int64_t sequences, int64_t length, int64_t vocab) {
  return static_cast<size_t>(sequences) * (4 + static_cast<size_t>(length + 1) * id_bytes(vocab));
}

size_t BoundarySizes::largest() const { return std::max({forward, backward, end_of_step}); }

BoundarySizes boundary_sizes(const RunConfig& config, int64_t vocab) {
  return boundary_sizes(config, vocab, config.train.microbatch);
}

BoundarySizes boundary_sizes(const RunConfig& config, int64_t vocab, int64_t sequences) {
  const auto& model = config.model;
  const auto pack = config.boundary.pack;
  if (config.pipeline.stages == 1 || !pack_problem(pack, model.boundary_width()).empty()) return {};
  BoundarySizes sizes;
  sizes.backward = packed_bytes(pack, sequences * config.train.seq_len, model.boundary_width());
  sizes.forward = ids_bytes(sequences, config.train.seq_len, vocab) + sizes.backward;
  if (model.is_subspace() && model.subspace.update_every > 0)
    sizes.end_of_step = sizeof(int64_t) + static_cast<size_t>(model.d * model.subspace.rank) * sizeof(double);
  return sizes;
}

}  // namespace thinpipe
