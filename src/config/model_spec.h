// The tensors of a model, one by one: the one description that the live model, the memory plan, checkpoints, import,
// export and the coordinator use. It follows from the config alone and needs no libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

// What the optimizer needs to know to choose a rule.
enum class ParameterKind {
  kMatrix,                // of a block, (in, out); updated by muon
  kEmbedding,             // (V, d)
  kHead,                  // (d, V)
  kGain,                  // of a norm; never decayed
  kCoordinates,           // A1, A2 of a subspace block: (w, k), represents A U^T (w, d)
  kEmbeddingCoordinates,  // E: (V, k), represents E U^T
};

// Initial values of a parameter: normal numbers with `std`, drawn by (seed, name); zeros; ones; or the rows of T_fixed.
enum class FirstValues { kNormal, kZeros, kOnes, kFixedTable };

// How a tensor group divides a parameter among its members: not at all, by columns (within each column block), or by
// rows.
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
  std::string unit;  // the parameters of a unit are saved in one file: "embedding", "anchors-1", "block-003", "head"
  ParameterKind kind = ParameterKind::kMatrix;
  std::vector<int64_t> shape;  // (length) for a gain, else (rows, columns)
  // Widths of matrices that lie side by side (q | k | v); muon updates each separately. Empty: one matrix.
  std::vector<int64_t> column_blocks;
  int64_t full_width = 0;  // coordinates only: d, the width of the matrix they represent
  FirstValues first = FirstValues::kNormal;
  double std = 0;
  Split split = Split::kNone;

  int64_t rows() const { return shape.size() > 1 ? shape.front() : 1; }
  int64_t columns() const { return shape.back(); }
  int64_t elements() const { return rows() * columns(); }
  bool is_coordinates() const { return full_width > 0; }
};

// The trainable tensors of these blocks, plus the embedding if the range holds the first block and the head if it holds
// the last. The order is that of gradient sums and files. This and the functions below need a validated config.
std::vector<ParameterSpec> model_spec(const ModelConfig& model, int64_t vocab, BlockRange range);

// The unit that every stage of a subspace model holds: the basis.
inline constexpr const char* kSharedUnit = "shared";
// The units of these blocks, in the order of model_spec(), without repeats; in a subspace model kSharedUnit comes last.
std::vector<std::string> model_units(const ModelConfig& model, BlockRange range);
// The units that the holder of these blocks saves: each unit is saved by one stage, the shared one by the last stage.
std::vector<std::string> saved_units(const ModelConfig& model, BlockRange range);

BlockRange whole_model(const ModelConfig& model);
// The blocks of a stage, given blocks per stage (for a config: blocks_per_stage()). `stage` must be valid.
BlockRange blocks_of_stage(const std::vector<int64_t>& cuts, int64_t stage);
BlockRange blocks_of_stage(const RunConfig& config, int64_t stage);

// The unit of a block: "block-003".
std::string block_unit(int64_t block);
// Whether the unit holds trained anchors.
bool is_anchor_unit(const std::string& unit);

// Blocks that share one table of anchors (METHOD 5).
struct AnchorGroup {
  int64_t number;
  int64_t first;
};
// The groups with coordinates in this range, ascending; a group that lies entirely in the dense tail has none. With
// fixed anchors there is one group with all blocks; a dense model has no groups.
std::vector<AnchorGroup> anchor_groups(const ModelConfig& model, BlockRange range);

// The (r, d) factor of the trained table of this name, with subspace.anchor_rank = r.
std::string anchor_map_name(const std::string& table);

// Bytes per number of weights, gradients, moments and activations (bf16 keeps them in float32).
int64_t element_bytes(Precision precision);

// When a block reads its stream through the anchor table (METHOD 1b). The model and the memory plan both use this rule.
// Returns the number of distinct tokens, in a microbatch of `rows` tokens, from which on the direct form is cheaper. In
// multiplications per output column, u distinct tokens cost rows k + u d by the table and rows d directly; the table's
// extra passes over memory cost about a quarter of its products.
constexpr double distinct_where_direct_is_cheaper(double rows, double d, double k) {
  constexpr double kTableOverhead = 1.25;
  return rows * (1 / kTableOverhead - k / d);
}

// A table T_fixed that is made from the seed and is larger than this is not kept; its rows are made when needed.
inline constexpr int64_t kMostFixedTableBytes = int64_t{256} << 20;
// The head computes the logits of this many tokens at a time.
inline constexpr int64_t kHeadRowsAtOnce = 512;

}  // namespace thinpipe
