#include "plan/stage_shape.h"

#include <tuple>
#include <utility>

#include "base/result.h"
#include "boundary/sizes.h"

namespace thinpipe {
namespace {

constexpr uint64_t kPacketTrailerBytes = 80;

class Shapes {
 public:
  void gain(int64_t width) { all_.push_back({TensorRole::kGain, 1, width, width}); }
  void table(int64_t rows, int64_t width) { all_.push_back({TensorRole::kTable, rows, width, width}); }
  void coordinates(int64_t rows, int64_t rank, bool in_block) {
    all_.push_back({TensorRole::kCoordinates, rows, rank, rank, in_block});
  }
  void matrix(int64_t rows, int64_t columns, int64_t widest_part) {
    all_.push_back({TensorRole::kMatrix, rows, columns, widest_part, true});
  }
  std::vector<ParameterShape> take() { return std::move(all_); }

 private:
  std::vector<ParameterShape> all_;
};

void add_block(const ModelConfig& model, bool subspace, Shapes& shapes) {
  const int64_t q = model.heads * model.head_dim(), kv = model.kv_heads * model.head_dim(), m = model.mlp_width;
  const bool anchor_gains = subspace && model.subspace.norm == NormForm::kSplit;
  for (const auto& [columns, part, inner] : {std::tuple{q + 2 * kv, q, q}, std::tuple{2 * m, m, m}}) {
    shapes.gain(model.d);
    if (anchor_gains) shapes.gain(model.d);
    shapes.matrix(model.d, columns, part);
    if (subspace) {
      shapes.coordinates(inner, model.subspace.rank, /*in_block=*/true);
    } else {
      shapes.matrix(inner, model.d, model.d);
    }
  }
  if (model.qk_norm) {
    shapes.gain(model.head_dim());
    shapes.gain(model.head_dim());
  }
}

// Trainable anchors: a table for every group that has a block here and is not wholly in the dense tail.
void add_anchors(const ModelConfig& model, int64_t vocab, StageBlocks blocks, Shapes& shapes) {
  if (!model.is_subspace() || model.subspace.anchors != Anchors::kStage) return;
  int64_t start = 0;
  for (const int64_t count : model.subspace.anchor_groups) {
    const int64_t end = start + count;
    if (end > blocks.first && start < blocks.last && start <= model.first_dense_block()) shapes.table(vocab, model.d);
    start = end;
  }
}

}  // namespace

StageBlocks stage_blocks(const RunConfig& config, int64_t stage) {
  const auto cuts = blocks_per_stage(config);
  TP_CHECK(stage >= 0 && stage < static_cast<int64_t>(cuts.size()), "stage {} of {}", stage, cuts.size());
  StageBlocks blocks{0, cuts.front()};
  for (size_t i = 1; i <= static_cast<size_t>(stage); ++i) blocks = {blocks.last, blocks.last + cuts[i]};
  return blocks;
}

std::vector<ParameterShape> parameter_shapes(const RunConfig& config, int64_t vocab, StageBlocks blocks) {
  const auto& model = config.model;
  Shapes shapes;
  if (blocks.first == 0) {
    if (model.is_subspace()) {
      shapes.coordinates(vocab, model.subspace.rank, /*in_block=*/false);
    } else {
      shapes.table(vocab, model.d);
    }
  }
  add_anchors(model, vocab, blocks, shapes);
  for (int64_t index = blocks.first; index < blocks.last; ++index) {
    add_block(model, index < model.first_dense_block(), shapes);
  }
  if (blocks.last == model.blocks) {
    shapes.gain(model.d);
    shapes.table(model.d, vocab);
  }
  return shapes.take();
}

int64_t parameter_count(const RunConfig& config, int64_t vocab, int64_t stage) {
  int64_t count = 0;
  for (const auto& shape : parameter_shapes(config, vocab, stage_blocks(config, stage))) {
    count += shape.rows * shape.columns;
  }
  return count;
}

double optimizer_elements(OptimizerKind kind, const ParameterShape& shape) {
  if (kind == OptimizerKind::kMuon && shape.in_block) return shape.elements();
  if (kind == OptimizerKind::kRowAdamw && shape.role == TensorRole::kCoordinates) {
    return shape.elements() + static_cast<double>(shape.rows);
  }
  return 2 * shape.elements();
}

int64_t element_bytes(Precision precision) { return precision == Precision::kFloat64 ? 8 : 4; }

uint64_t state_bytes(const RunConfig& config, int64_t vocab, int64_t stage) {
  return state_bytes(config, vocab, stage_blocks(config, stage));
}

uint64_t state_bytes(const RunConfig& config, int64_t vocab, StageBlocks blocks) {
  double elements = 0;
  for (const auto& shape : parameter_shapes(config, vocab, blocks)) {
    elements += shape.elements() + optimizer_elements(config.optim.kind, shape);
  }
  const auto& model = config.model;
  const auto d = static_cast<uint64_t>(model.d);
  const auto number = static_cast<uint64_t>(element_bytes(config.train.precision));
  auto bytes = static_cast<uint64_t>(elements) * number;
  if (model.is_subspace()) {
    bytes += d * static_cast<uint64_t>(model.subspace.rank) * 8;
    if (blocks.last == model.blocks && model.subspace.update_every > 0) bytes += d * d * number;
  }
  return bytes;
}

StepTraffic step_traffic(const RunConfig& config, int64_t vocab, int64_t stage) {
  const auto microbatches = static_cast<uint64_t>(config.train.microbatches);
  const auto sizes = boundary_sizes(config, vocab);
  const uint64_t forward = microbatches * (sizes.forward + kPacketTrailerBytes);
  const uint64_t backward = microbatches * (sizes.backward + kPacketTrailerBytes);
  StepTraffic traffic{0, 0};
  if (stage > 0) {
    traffic.received += forward;
    traffic.sent += backward;
  }
  if (stage + 1 < config.pipeline.stages) {
    traffic.sent += forward;
    traffic.received += backward;
  }
  return traffic;
}

}  // namespace thinpipe
