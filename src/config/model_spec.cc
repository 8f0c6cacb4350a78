#include "config/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/result.h"

namespace thinpipe {
namespace {

constexpr const char* kAnchorUnits = "anchors-";

// A needs a std larger by this factor for A U^T to have entries of the given std.
double coordinates_scale(const ModelConfig& model) {
  return std::sqrt(static_cast<double>(model.d) / static_cast<double>(model.subspace.rank));
}

ParameterSpec gain_spec(std::string name, std::string unit, int64_t width) {
  ParameterSpec spec{std::move(name), std::move(unit), ParameterKind::kGain, {width}};
  spec.first = FirstValues::kOnes;
  return spec;
}

ParameterSpec embedding_spec(const ModelConfig& model, int64_t vocab) {
  ParameterSpec spec{"embedding", "embedding", ParameterKind::kEmbedding, {vocab, model.d}};
  spec.std = model.init_std;
  if (!model.is_subspace() && !model.table.empty()) spec.first = FirstValues::kFixedTable;
  if (model.is_subspace()) {
    spec.name = "embedding_coordinates";
    spec.kind = ParameterKind::kEmbeddingCoordinates;
    spec.shape = {vocab, model.subspace.rank};
    spec.full_width = model.d;
    spec.std = model.init_std * coordinates_scale(model);
  }
  return spec;
}

// A trained table of anchors. With anchor_rank it is the product of two, of which the first starts at zero: the token's
// part is then added to T_fixed instead of starting as it.
void add_anchors(const ModelConfig& model, int64_t vocab, const std::string& name, const std::string& unit,
                 FirstValues first, std::vector<ParameterSpec>& all) {
  const int64_t rank = model.subspace.anchor_rank;
  all.push_back({name, unit, ParameterKind::kEmbedding, {vocab, rank > 0 ? rank : model.d}});
  all.back().first = rank > 0 ? FirstValues::kZeros : first;
  if (rank == 0) return;
  all.push_back({anchor_map_name(name), unit, ParameterKind::kMatrix, {rank, model.d}});
  // A step of the first then moves a row of the product as far as it would move a row of a whole table.
  all.back().std = 1 / std::sqrt(static_cast<double>(rank));
}

// The parameters of one block, in order.
class BlockSpecs {
 public:
  BlockSpecs(const ModelConfig& model, int64_t index, std::vector<ParameterSpec>& all)
      : model_(model), index_(index), subspace_(index < model.first_dense_block()), all_(all) {}

  void add() {
    const int64_t q = model_.heads * model_.head_dim(), kv = model_.kv_heads * model_.head_dim(), m = model_.mlp_width;
    add_reader("attn", "wqkv", {q, kv, kv});
    if (model_.qk_norm) {
      add_gain("q_norm", model_.head_dim());
      add_gain("k_norm", model_.head_dim());
    }
    add_output(1, q);
    add_reader("mlp", "wgu", {m, m});
    add_output(2, m);
  }

 private:
  std::string name(std::string_view part) const { return fmt::format("blocks.{}.{}", index_, part); }
  std::string unit() const { return block_unit(index_); }
  void add_gain(std::string_view part, int64_t width) { all_.push_back(gain_spec(name(part), unit(), width)); }

  void add_reader(std::string_view norm, std::string_view weight, std::vector<int64_t> columns) {
    add_gain(fmt::format("{}_norm", norm), model_.d);
    int64_t width = 0;
    for (const int64_t part : columns) width += part;
    ParameterSpec spec{name(weight), unit(), ParameterKind::kMatrix, {model_.d, width}, std::move(columns)};
    spec.std = model_.init_std;
    spec.split = Split::kColumns;
    all_.push_back(std::move(spec));
  }

  void add_output(int number, int64_t inputs) {
    ParameterSpec spec{name(fmt::format("wp{}", number)), unit(), ParameterKind::kMatrix, {inputs, model_.d}};
    // 2L output projections add to the stream; this keeps its variance at initialisation from growing with L.
    spec.std = model_.init_std / std::sqrt(2.0 * static_cast<double>(model_.blocks));
    spec.split = Split::kRows;
    if (subspace_) {
      spec.name = name(fmt::format("a{}", number));
      spec.kind = ParameterKind::kCoordinates;
      spec.shape = {inputs, model_.subspace.rank};
      spec.full_width = model_.d;
      spec.std *= model_.subspace.zero_init ? 0.0 : coordinates_scale(model_);
    }
    all_.push_back(std::move(spec));
  }

  const ModelConfig& model_;
  int64_t index_;
  bool subspace_;
  std::vector<ParameterSpec>& all_;
};

}  // namespace

std::string block_unit(int64_t block) { return fmt::format("block-{:03}", block); }

bool is_anchor_unit(const std::string& unit) { return unit.starts_with(kAnchorUnits); }

std::string anchor_map_name(const std::string& table) { return table + ".map"; }

std::vector<ParameterSpec> model_spec(const ModelConfig& model, int64_t vocab, BlockRange range) {
  std::vector<ParameterSpec> all;
  if (range.has_embedding()) all.push_back(embedding_spec(model, vocab));
  if (model.is_subspace() && model.subspace.anchors == Anchors::kStage) {
    for (const auto& group : anchor_groups(model, range)) {
      const auto unit = fmt::format("{}{}", kAnchorUnits, group.number);
      add_anchors(model, vocab, fmt::format("anchors.{}", group.number), unit, FirstValues::kFixedTable, all);
      if (model.subspace.previous == Previous::kNone) continue;
      add_anchors(model, vocab, fmt::format("previous.{}", group.number), unit, FirstValues::kZeros, all);
    }
  }
  for (int64_t index = range.first; index < range.last; ++index) BlockSpecs(model, index, all).add();
  if (range.has_head()) {
    all.push_back(gain_spec("final_norm", "head", model.d));
    all.push_back({"head", "head", ParameterKind::kHead, {model.d, vocab}});
    all.back().std = model.init_std;
    all.back().split = Split::kColumns;
  }
  return all;
}

std::vector<std::string> model_units(const ModelConfig& model, BlockRange range) {
  std::vector<std::string> units;
  for (const auto& spec : model_spec(model, 1, range)) {
    if (units.empty() || units.back() != spec.unit) units.push_back(spec.unit);
  }
  if (model.is_subspace()) units.emplace_back(kSharedUnit);
  return units;
}

std::vector<std::string> saved_units(const ModelConfig& model, BlockRange range) {
  auto units = model_units(model, range);
  if (model.is_subspace() && !range.has_head()) units.pop_back();
  return units;
}

BlockRange whole_model(const ModelConfig& model) { return {0, model.blocks, model.blocks}; }

BlockRange blocks_of_stage(const std::vector<int64_t>& cuts, int64_t stage) {
  TP_CHECK(stage >= 0 && stage < static_cast<int64_t>(cuts.size()), "stage {} of {}", stage, cuts.size());
  const auto first = std::accumulate(cuts.begin(), cuts.begin() + stage, int64_t{0});
  return {first, first + cuts[static_cast<size_t>(stage)], std::accumulate(cuts.begin(), cuts.end(), int64_t{0})};
}

BlockRange blocks_of_stage(const RunConfig& config, int64_t stage) {
  return blocks_of_stage(blocks_per_stage(config), stage);
}

std::vector<AnchorGroup> anchor_groups(const ModelConfig& model, BlockRange range) {
  if (!model.is_subspace()) return {};
  std::vector<int64_t> edges{0};
  if (model.subspace.anchors == Anchors::kStage) {
    for (const int64_t blocks : model.subspace.anchor_groups) edges.push_back(edges.back() + blocks);
  }
  if (edges.back() < model.blocks) edges.push_back(model.blocks);
  std::vector<AnchorGroup> groups;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    const bool in_range = edges[i + 1] > range.first && edges[i] < range.last;
    if (in_range && edges[i] <= model.first_dense_block()) groups.push_back({static_cast<int64_t>(i), edges[i]});
  }
  return groups;
}

int64_t element_bytes(Precision precision) { return precision == Precision::kFloat64 ? 8 : 4; }

}  // namespace thinpipe
