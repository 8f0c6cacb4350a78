#include "config/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "config/keys.h"

namespace thinpipe {
namespace {

void check_ranges(const RunConfig& config) {
  for (const Key& key : config_keys()) {
    const KeyValue value = key.get(config);
    if (!key.accepts(value)) throw UserError(fmt::format("{} = {}: needs {}", key.full(), toml_text(value), key.needs));
  }
}

void check_model(const ModelConfig& model) {
  if (model.d % model.heads != 0) {
    throw UserError(fmt::format("model.heads = {}: needs to divide model.d = {}", model.heads, model.d));
  }
  if (model.heads % model.kv_heads != 0) {
    throw UserError(fmt::format("model.kv_heads = {}: needs to divide model.heads = {}", model.kv_heads, model.heads));
  }
  if (model.positions == Positions::kRope && model.head_dim() % 2 != 0) {
    throw UserError(
        fmt::format("model.heads = {} makes heads of {} (model.d = {}): needs an even head width for "
                    "model.positions = \"rope\"",
                    model.heads, model.head_dim(), model.d));
  }
  if (model.positions == Positions::kSinusoidal && model.d % 2 != 0) {
    throw UserError(fmt::format("model.d = {}: needs to be even for model.positions = \"sinusoidal\"", model.d));
  }
}

// The remainder goes to the first stages. The dense tail stays together in the last stage as far as possible.
std::vector<int64_t> even_cuts(const ModelConfig& model, int64_t stages) {
  const int64_t tail = model.is_subspace() ? model.subspace.full_rank_tail : 0;
  const bool tail_is_more = stages > 1 && tail > model.blocks / stages && model.blocks - tail >= stages - 1;
  const int64_t divided = tail_is_more ? model.blocks - tail : model.blocks;
  const int64_t among = tail_is_more ? stages - 1 : stages;
  std::vector<int64_t> blocks(static_cast<size_t>(among), divided / among);
  std::for_each_n(blocks.begin(), divided % among, [](int64_t& count) { ++count; });
  if (tail_is_more) blocks.push_back(tail);
  return blocks;
}

void check_anchor_groups(const RunConfig& config) {
  const auto& groups = config.model.subspace.anchor_groups;
  const std::string shown = toml_text(groups);
  const int64_t sum = std::accumulate(groups.begin(), groups.end(), int64_t{0});
  if (sum != config.model.blocks) {
    throw UserError(fmt::format("subspace.anchor_groups = {}: sums to {}, needs to sum to model.blocks = {}", shown,
                                sum, config.model.blocks));
  }
  // Every cut must lie on the edge of a group.
  int64_t cut = 0;
  for (const int64_t blocks : blocks_per_stage(config)) {
    cut += blocks;
    int64_t edge = 0;
    for (size_t i = 0; i < groups.size() && edge < cut; ++i) edge += groups[i];
    if (edge != cut) {
      throw UserError(
          fmt::format("subspace.anchor_groups = {}: a cut after block {} would split a group; cut only between groups",
                      shown, cut));
    }
  }
}

void check_subspace(const RunConfig& config) {
  const auto& model = config.model;
  const auto& subspace = model.subspace;
  if (!model.is_subspace()) {
    if (config.optim.kind == OptimizerKind::kRowAdamw) {
      throw UserError(
          "optim.kind = \"row_adamw\": needs model.mode = \"subspace\"; a dense model takes \"adamw\" or \"muon\"");
    }
    return;
  }
  if (subspace.rank > model.d) {
    throw UserError(fmt::format("subspace.rank = {}: needs to be at most model.d = {}", subspace.rank, model.d));
  }
  if (subspace.full_rank_tail > model.blocks) {
    throw UserError(fmt::format("subspace.full_rank_tail = {}: needs to be at most model.blocks = {}",
                                subspace.full_rank_tail, model.blocks));
  }
  const int64_t most_stages = model.blocks - std::max<int64_t>(subspace.full_rank_tail, 1) + 1;
  if (config.pipeline.stages > most_stages) {
    throw UserError(
        fmt::format("pipeline.stages = {}: the last stage needs all {} blocks of subspace.full_rank_tail, which leaves "
                    "model.blocks = {} for at most {} in all",
                    config.pipeline.stages, subspace.full_rank_tail, model.blocks, most_stages));
  }
  const auto cuts = blocks_per_stage(config);
  if (cuts.back() < subspace.full_rank_tail) {
    throw UserError(
        fmt::format("pipeline.cuts = {}: the last stage needs all {} blocks of subspace.full_rank_tail and has {}; cut "
                    "after block {} or earlier, as in {}",
                    toml_text(cuts), subspace.full_rank_tail, cuts.back(), model.first_dense_block(),
                    toml_text(even_cuts(model, config.pipeline.stages))));
  }
  if (subspace.anchors == Anchors::kStage) {
    check_anchor_groups(config);
    if (subspace.anchor_rank <= model.d) return;
    throw UserError(fmt::format("subspace.anchor_rank = {}: needs at most model.d = {}; 0 gives whole tables",
                                subspace.anchor_rank, model.d));
  }
  if (subspace.anchor_rank > 0) {
    throw UserError(fmt::format("subspace.anchor_rank = {}: needs subspace.anchors = \"stage\", fixed anchors are not "
                                "trained",
                                subspace.anchor_rank));
  }
  if (subspace.previous == Previous::kTable) {
    throw UserError(
        "subspace.previous = \"table\": needs subspace.anchors = \"stage\", one pair of tables per group of blocks");
  }
  if (!subspace.anchor_groups.empty()) {
    throw UserError(
        fmt::format("subspace.anchor_groups = {}: needs subspace.anchors = \"stage\", fixed anchors have no groups",
                    toml_text(subspace.anchor_groups)));
  }
}

void check_pipeline(const RunConfig& config) {
  const auto& stages = config.pipeline.stages;
  const auto& cuts = config.pipeline.cuts;
  const int64_t blocks = config.model.blocks;
  if (stages > blocks) {
    throw UserError(
        fmt::format("pipeline.stages = {}: more stages than blocks, needs at most model.blocks = {}", stages, blocks));
  }
  if (cuts.empty()) return;
  const std::string shown = toml_text(cuts);
  if (config.pipeline.auto_cuts) {
    throw UserError(fmt::format("pipeline.cuts = \"auto\" and {}: give only one of them", shown));
  }
  if (static_cast<int64_t>(cuts.size()) != stages) {
    throw UserError(fmt::format("pipeline.cuts = {}: has {} entries, needs one per stage (pipeline.stages = {})", shown,
                                cuts.size(), stages));
  }
  const int64_t sum = std::accumulate(cuts.begin(), cuts.end(), int64_t{0});
  if (sum != blocks) {
    throw UserError(
        fmt::format("pipeline.cuts = {}: sums to {}, needs to sum to model.blocks = {}", shown, sum, blocks));
  }
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.push_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Parses one key and calls set(direction, parsed value) for both directions of every cut.
template <class Parse, class Set>
void read_link_key(std::vector<CutSettings>& cuts, std::string_view key, const std::string& text, Parse parse,
                   Set set) {
  const auto values = split(text, ',');
  if (values.size() != 1 && values.size() != cuts.size()) {
    throw UserError(fmt::format("link.{} = \"{}\": has {} values, needs one for all cuts or one for each of the {}",
                                key, text, values.size(), cuts.size()));
  }
  for (size_t cut = 0; cut < cuts.size(); ++cut) {
    const auto directions = split(values[values.size() == 1 ? 0 : cut], '/');
    if (directions.size() > 2) {
      throw UserError(fmt::format("link.{} = \"{}\": needs one value, or forward/backward", key, text));
    }
    const auto value_of = [&](size_t direction) {
      auto value = parse(directions[direction]);
      if (!value) throw UserError(fmt::format("link.{} = \"{}\": {}", key, text, value.error().message));
      return value.value();
    };
    set(cuts[cut].forward, value_of(0));
    set(cuts[cut].backward, value_of(directions.size() - 1));
  }
}

}  // namespace

std::string_view to_string(Positions positions) { return enum_name(positions); }
std::string_view to_string(Precision precision) { return enum_name(precision); }
std::string_view to_string(OptimizerKind kind) { return enum_name(kind); }
std::string_view to_string(LrSchedule schedule) { return enum_name(schedule); }
std::string_view to_string(Pack pack) { return enum_name(pack); }
std::string_view to_string(BoundaryKind kind) { return enum_name(kind); }

int64_t default_mlp_width(int64_t d) { return (8 * d + 95) / 96 * 32; }

void validate(const RunConfig& config) {
  check_ranges(config);
  check_model(config.model);
  check_pipeline(config);
  check_subspace(config);
  link_settings(config);
}

std::vector<CutSettings> link_settings(const RunConfig& config) {
  // A run with one stage has no cut, but mistakes in its keys are still reported: parse them for one cut.
  const auto count = static_cast<size_t>(config.pipeline.stages - 1);
  std::vector<CutSettings> cuts(count == 0 ? 1 : count);
  const auto& link = config.link;
  read_link_key(cuts, "rate", link.rate, parse_rate,
                [](auto& direction, uint64_t rate) { direction.rate_bits_per_s = rate; });
  read_link_key(cuts, "delay", link.delay, parse_duration,
                [](auto& direction, Duration delay) { direction.delay = delay; });
  read_link_key(cuts, "jitter", link.jitter, parse_duration,
                [](auto& direction, Duration time) { direction.jitter = time; });
  cuts.resize(count);
  return cuts;
}

std::vector<int64_t> blocks_per_stage(const RunConfig& config) {
  if (!config.pipeline.cuts.empty()) return config.pipeline.cuts;
  const int64_t stages = config.pipeline.stages;
  TP_CHECK(stages >= 1, "blocks_per_stage needs a validated config, not {} stages", stages);
  return even_cuts(config.model, stages);
}

}  // namespace thinpipe
