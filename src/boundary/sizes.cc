#include "boundary/sizes.h"

#include <fmt/format.h>

#include <algorithm>

#include "boundary/pack.h"

namespace thinpipe {
namespace {

// Why the run's kind of boundary does not fit its model; "" if it does.
std::string kind_problem(const RunConfig& config) {
  const auto& boundary = config.boundary;
  if (boundary.kind == BoundaryKind::kStream) return "";
  const auto kind = to_string(boundary.kind);
  if (config.model.is_subspace()) {
    return fmt::format(
        "boundary.kind = \"{}\": needs model.mode = \"dense\"; a subspace model sends its few coordinates whole, with "
        "\"stream\"",
        kind);
  }
  const auto too_many = [&](const char* key, int64_t most) {
    return fmt::format("boundary.keep = {}: \"{}\" needs at most {} = {}", boundary.keep, kind, key, most);
  };
  if (boundary.keep > config.model.d) return too_many("model.d", config.model.d);
  // The last microbatch of an evaluation may be a single sequence.
  if (boundary.kind == BoundaryKind::kLowRank && boundary.keep > config.train.seq_len) {
    return too_many("train.seq_len", config.train.seq_len);
  }
  return "";
}

// The columns of the matrix that is packed, and the key that sets them.
std::pair<int64_t, const char*> packed_width(const RunConfig& config) {
  if (config.boundary.kind != BoundaryKind::kStream) return {config.boundary.keep, "boundary.keep"};
  return {config.model.boundary_width(), config.model.is_subspace() ? "subspace.rank" : "model.d"};
}

}  // namespace

size_t id_bytes(int64_t count) { return count <= (1 << 16) ? 2 : 4; }

size_t ids_bytes(int64_t sequences, int64_t length, int64_t vocab) {
  return static_cast<size_t>(sequences) * (4 + static_cast<size_t>(length + 1) * id_bytes(vocab));
}

std::string boundary_problem(const RunConfig& config) {
  if (config.pipeline.stages == 1) return "";
  if (auto problem = kind_problem(config); !problem.empty()) return problem;
  const auto [width, key] = packed_width(config);
  const auto problem = pack_problem(config.boundary.pack, width);
  if (problem.empty()) return "";
  return fmt::format("boundary.pack = \"{}\" with {} = {}: {}", to_string(config.boundary.pack), key, width, problem);
}

size_t stream_bytes(const RunConfig& config, int64_t rows) {
  const auto pack = config.boundary.pack;
  const int64_t keep = config.boundary.keep, d = config.model.d;
  switch (config.boundary.kind) {
    case BoundaryKind::kStream:
      return packed_bytes(pack, rows, config.model.boundary_width());
    case BoundaryKind::kTopK:
      return static_cast<size_t>(rows * keep) * id_bytes(d) + packed_bytes(pack, rows, keep);
    case BoundaryKind::kLowRank:
      return packed_bytes(pack, rows + d, keep);
  }
  TP_CHECK(false, "unknown boundary kind {}", static_cast<int>(config.boundary.kind));
}

size_t BoundarySizes::largest() const { return std::max({forward, backward, end_of_step}); }

BoundarySizes boundary_sizes(const RunConfig& config, int64_t vocab) {
  return boundary_sizes(config, vocab, config.train.microbatch);
}

BoundarySizes boundary_sizes(const RunConfig& config, int64_t vocab, int64_t sequences) {
  const auto& model = config.model;
  if (config.pipeline.stages == 1 || !boundary_problem(config).empty()) return {};
  BoundarySizes sizes;
  sizes.backward = stream_bytes(config, sequences * config.train.seq_len);
  sizes.forward = ids_bytes(sequences, config.train.seq_len, vocab) + sizes.backward;
  if (model.is_subspace() && model.subspace.update_every > 0)
    sizes.end_of_step = sizeof(int64_t) + static_cast<size_t>(model.d * model.subspace.rank) * sizeof(double);
  return sizes;
}

}  // namespace thinpipe
