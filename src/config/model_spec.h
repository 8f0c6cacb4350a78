// What a model consists of, tensor by tensor: the one description that the live model, the memory plan, checkpoints,
// import, export and the coordinator read. It follows from the config alone and needs no libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

// What the optimiser needs to know to choose a rule.
enum class ParameterKind {
  kMatrix,                // of a block, (in, out); muon's
  kEmbedding,             // (V, d)
  kHead,                  // (d, V)
  kGain,                  // of a norm; never decayed
  kCoordinates,           // A1, A2 of a subspace block: (w, k), standing for A U^T (w, d)
  kEmbeddingCoordinates,  // E: (V, k), standing for E U^T
};

// What a parameter starts from: normal numbers with `std`, drawn by (seed, name); ones; or the rows of T_fixed.
enum class FirstValues { kNormal, kOnes, kFixedTable };

// How a tensor group divides a parameter among its members: not at all, each of its column blocks, or its rows.
enum class Split { kNone, kColumns, kRows };

// Blocks [first, last) of the model's `total`.
struct BlockRange {
  int64_t first;
  int64_t last;
  int64_t total;

  bool has_embedding() const { return first == 0; }
  bool has_head() const { return last == total; }
  int64_t size() const { return last - first; }
  bool operator==(const BlockRange&) const = default;
};

struct ParameterSpec {
  std::string name;  // "blocks.3.wqkv"
  std::string unit;  // what is saved in one file: "embedding", "anchors-1", "block-003", "head"
  ParameterKind kind = ParameterKind::kMatrix;
  std::vector<int64_t> shape;  // of one length for a gain, else (rows, columns)
  // Widths of the matrices that stand side by side (q | k | v): muon takes each by itself. Empty: one.
  std::vector<int64_t> column_blocks;
  int64_t full_width = 0;  // coordinates only: d, the width of what they stand for
  FirstValues first = FirstValues::kNormal;
  double std = 0;
  Split split = Split::kNone;

  int64_t rows() const { return shape.size() > 1 ? shape.front() : 1; }
  int64_t columns() const { return shape.back(); }
  int64_t elements() const { return rows() * columns(); }
  bool is_coordinates() const { return full_width > 0; }
};

// The trainable tensors of those blocks, with the embedding before the first and the head behind the last, in the order
// in which gradients are summed and files are written. The config must be validated, here and below.
std::vector<ParameterSpec> model_spec(const ModelConfig& model, int64_t vocab, BlockRange range);

// The unit of what every stage of a subspace model holds: the basis.
inline constexpr const char* kSharedUnit = "shared";
// Every unit of those blocks once, in the order of model_spec(); kSharedUnit last, in a subspace model.
std::vector<std::string> model_units(const ModelConfig& model, BlockRange range);
// Those of them that the holder of the blocks saves: each unit of a model is saved by one stage, the shared one by the
// last.
std::vector<std::string> saved_units(const ModelConfig& model, BlockRange range);

BlockRange whole_model(const ModelConfig& model);
// Of cuts as blocks per stage; the config's are blocks_per_stage(). `stage` must be one of them.
BlockRange blocks_of_stage(const std::vector<int64_t>& cuts, int64_t stage);
BlockRange blocks_of_stage(const RunConfig& config, int64_t stage);

// Blocks that share one table of anchors (METHOD 5).
struct AnchorGroup {
  int64_t number;
  int64_t first;
};
// Those that anchor coordinates somewhere in the range, ascending: a group that lies wholly in the dense tail has none
// to anchor. One group of all blocks where anchors are fixed; none in a dense model.
std::vector<AnchorGroup> anchor_groups(const ModelConfig& model, BlockRange range);

// Bytes of a number as weights, gradients, moments and activations are kept (bf16 keeps float32).
int64_t element_bytes(Precision precision);

// When a block reads its stream through the anchor table (METHOD 1b), one rule for the model, which chooses by it, and
// the memory plan. Of a microbatch of `rows` tokens, the number of distinct ones from which on the direct form is
// cheaper. In multiplications per output column, u distinct tokens cost rows k + u d by the table and rows d directly;
// the table's extra passes over memory cost about a quarter of its products.
constexpr double distinct_where_direct_is_cheaper(double rows, double d, double k) {
  constexpr double kTableOverhead = 1.25;
  return rows * (1 / kTableOverhead - k / d);
}

// Larger tables T_fixed of the seed are not kept but made row by row when they are needed.
inline constexpr int64_t kMostFixedTableBytes = int64_t{256} << 20;
// The head makes the logits of this many tokens at a time.
inline constexpr int64_t kHeadRowsAtOnce = 512;

}  // namespace thinpipe
