#include "plan/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

#include "boundary/sizes.h"
#include "net/packet.h"
#include "optim/rules.h"

namespace thinpipe {
namespace {

// Resident memory of a run of one tiny block: the program, libtorch and the buffers of its thread pools.
constexpr double kBaseBytes = 192.0 * (1 << 20);
// Freed tensors leave holes in the heap that the next tensor does not always fit.
constexpr double kHeapSlack = 1.05;
// Temporary memory for rounding an operand to bf16 and back, in float32 numbers per number.
constexpr double kRoundedOperand = 1.5;
constexpr double kMostBytes = 1e18;

uint64_t bytes(double count) { return static_cast<uint64_t>(std::min(count, kMostBytes)); }

// The sizes of the model as doubles, so that products do not overflow.
struct Sizes {
  double d, k, q, kv, m, heads, rows, length, sequences, vocab, number, moment;
  bool rounds;

  Sizes(const RunConfig& config, int64_t vocabulary)
      : d(static_cast<double>(config.model.d)),
        k(static_cast<double>(config.model.subspace.rank)),
        q(static_cast<double>(config.model.heads * config.model.head_dim())),
        kv(static_cast<double>(config.model.kv_heads * config.model.head_dim())),
        m(static_cast<double>(config.model.mlp_width)),
        heads(static_cast<double>(config.model.heads)),
        rows(static_cast<double>(config.train.microbatch * config.train.seq_len)),
        length(static_cast<double>(config.train.seq_len)),
        sequences(static_cast<double>(config.train.microbatch)),
        vocab(static_cast<double>(vocabulary)),
        number(static_cast<double>(element_bytes(config.train.precision))),
        moment(config.optim.state == StateFormat::kBf16 ? 2 : number),
        rounds(config.train.precision == Precision::kBf16) {}

  double qkv() const { return q + 2 * kv; }
};

// The most rows that the parts of a microbatch's anchors can have together (model/anchors.h).
double most_anchor_rows(const ModelConfig& model, const Sizes& s) {
  const double tables = model.subspace.previous == Previous::kNone ? 1 : 2;
  return tables * std::min(s.rows, s.vocab) + (model.positions == Positions::kSinusoidal ? s.length : 0);
}

// The largest number of those rows for which the anchor table is used; 0 if it never is.
double most_table_rows(const ModelConfig& model, const Sizes& s) {
  const double distinct = most_anchor_rows(model, s);
  if (model.subspace.input == InputForm::kTable) return distinct;
  if (model.subspace.input == InputForm::kDirect) return 0;
  return std::clamp(distinct_where_direct_is_cheaper(s.rows, s.d, s.k), 0.0, distinct);
}

// How many of a block's two reads are of coordinates (model/block.h): attention's comes first.
int coordinate_reads(const ModelConfig& model, int64_t block) {
  if (!model.is_subspace() || block > model.first_dense_block()) return 0;
  return block == model.first_dense_block() ? 1 : 2;
}

// Numbers a block keeps of a microbatch from its forward to its backward (model/block.h, BlockPass).
double kept_by_block(const ModelConfig& model, const Sizes& s, int reads) {
  double kept = s.rows * (s.qkv() + s.q + 3 * s.m + s.heads + 4);
  if (model.qk_norm) kept += s.rows * (s.q + s.kv + 2 * s.heads);
  kept += (2 - reads) * 2 * s.rows * s.d;
  if (reads == 0) return kept;
  const double direct = reads * 2 * s.rows * s.d;
  const double table = (s.k + most_table_rows(model, s)) * (s.qkv() + (reads - 1) * 2 * s.m);
  const bool may_read_directly = model.subspace.input != InputForm::kTable;
  return kept + reads * s.rows * s.k + std::max(may_read_directly ? direct : 0.0, table);
}

// Temporary numbers of one block during its backward pass.
double used_by_block(const Sizes& s, int reads, double table_rows) {
  const double widest = std::max(2 * s.m, s.qkv());
  double used = s.rows * (s.m + std::max(2 * s.m, s.q + s.qkv()) + 3 * s.d);
  // The gradients of diag(g) W and of the table.
  if (reads > 0) used += (reads > 1 ? widest : s.qkv()) * (s.d + table_rows);
  if (s.rounds) used += kRoundedOperand * (s.rows * (widest + s.d) + s.d * widest);
  return used;
}

// Anchor rows of one group for one microbatch (model/anchors.h).
double kept_by_anchors(const ModelConfig& model, const Sizes& s) {
  const double copies = model.subspace.anchors == Anchors::kStage ? 2 : 1;  // with a gradient
  constexpr double kMostParts = 3;
  return copies * (most_anchor_rows(model, s) * s.d + s.rows * (s.k + 1)) + kMostParts * 8 * s.rows;
}

double activation_bytes(const RunConfig& config, const Sizes& s, BlockRange blocks, double in_flight) {
  const int most_reads = coordinate_reads(config.model, blocks.first);  // fewer in the blocks that follow
  const double table_rows = config.model.is_subspace() ? most_table_rows(config.model, s) : 0;
  const double kept = kept_per_microbatch(config, static_cast<int64_t>(s.vocab), blocks);
  double used = used_by_block(s, most_reads, table_rows);
  if (config.train.recompute == Recompute::kBlock) {  // one block at a time
    double most = 0;
    for (int64_t block = blocks.first; block < blocks.last; ++block)
      most = std::max(most, kept_by_block(config.model, s, coordinate_reads(config.model, block)));
    used += most;
  }
  return kHeapSlack * s.number * (in_flight * kept + used);
}

double logit_bytes(const Sizes& s) {
  const double at_once = std::min(s.rows, static_cast<double>(kHeadRowsAtOnce));
  double numbers = at_once * (s.vocab + s.d) + 4 * s.rows * s.d;
  if (s.rounds) numbers += kRoundedOperand * (at_once + s.d) * s.vocab;
  return s.number * numbers;
}

// An outbox holds M + 1 messages, and so does the receiving end. What is sent counts twice: protobuf and gRPC have
// copies of what is on its way.
double queue_bytes(const RunConfig& config, int64_t vocab, int64_t stage) {
  const auto messages = static_cast<double>(config.train.microbatches + 1);
  const auto sizes = boundary_sizes(config, vocab);
  const auto forward = static_cast<double>(sizes.forward), backward = static_cast<double>(sizes.backward);
  double total = 0;
  if (stage > 0) total += messages * (forward + 2 * backward);
  if (stage + 1 < config.pipeline.stages) total += messages * (2 * forward + backward);
  return total;
}

// With error feedback each sending side of a cut keeps what its messages lost.
double left_out_bytes(const RunConfig& config, const Sizes& s, BlockRange blocks) {
  if (!config.boundary.error_feedback) return 0;
  const double sides = (blocks.has_embedding() ? 0 : 1) + (blocks.has_head() ? 0 : 1);
  return sides * s.number * s.rows * static_cast<double>(config.model.boundary_width());
}

// Bytes of a checkpoint besides parameters and moments: the basis and, in the stage that collects it, C.
double shared_state_bytes(const ModelConfig& model, const Sizes& s, BlockRange blocks) {
  if (!model.is_subspace()) return 0;
  const bool gathers = blocks.has_head() && model.subspace.update_every > 0;
  return s.d * s.k * 8 + (gathers ? s.d * s.d * s.number : 0);
}

// Basis, frozen table, and memory for updates of the subspace.
void add_subspace(const RunConfig& config, const Sizes& s, BlockRange blocks, MemoryPlan& plan) {
  const auto& model = config.model;
  if (!model.is_subspace()) return;
  double table = s.vocab * s.d * s.number;
  if (model.table.empty()) {
    if (table > static_cast<double>(kMostFixedTableBytes)) table = 0;
  } else if (s.number > 4) {
    table += s.vocab * s.d * 4;  // as it was read
  }
  plan.parameters += bytes(s.d * s.k * (8 + s.number) + table);
  if (blocks.has_head() && model.subspace.update_every > 0) {
    // C and what a step adds to it; for an update, C and its projection in float64.
    plan.gradients += bytes(s.d * s.d * (2 * s.number + 3 * 8));
  }
}

}  // namespace

uint64_t MemoryPlan::total() const {
  return parameters + gradients + optimizer + activations + logits + queues + checkpoint_copy + base;
}

double kept_per_microbatch(const RunConfig& config, int64_t vocab, BlockRange blocks) {
  const auto& model = config.model;
  const Sizes s(config, vocab);
  double kept = 0;
  for (int64_t block = blocks.first; block < blocks.last; ++block) {
    const int reads = coordinate_reads(model, block);
    kept += config.train.recompute == Recompute::kBlock ? s.rows * (reads > 0 ? s.k : s.d)  // the input of the block
                                                        : kept_by_block(model, s, reads);
  }
  kept += static_cast<double>(anchor_groups(model, blocks).size()) * kept_by_anchors(model, s);
  const double stream = s.rows * static_cast<double>(model.boundary_width());
  kept += 2 * stream + 2 * s.rows;  // input, output and ids
  if (blocks.has_head()) kept += s.rows * s.d;
  return kept;
}

int64_t most_in_flight(const RunConfig& config, int64_t stage) {
  const bool is_last = stage == config.pipeline.stages - 1;
  return is_last && config.pipeline.schedule == ScheduleKind::k1f1b ? 1 : config.train.microbatches;
}

uint64_t state_bytes(const RunConfig& config, int64_t vocab, BlockRange blocks) {
  const Sizes s(config, vocab);
  double numbers = 0, moments = 0;
  for (const auto& spec : model_spec(config.model, vocab, blocks)) {
    numbers += static_cast<double>(spec.elements());
    moments += numbers_in(rule_for(config.optim.kind, spec).state(spec));
  }
  return bytes(s.number * numbers + s.moment * moments + shared_state_bytes(config.model, s, blocks) +
               left_out_bytes(config, s, blocks));
}

StepTraffic step_traffic(const RunConfig& config, int64_t vocab, int64_t stage) {
  const auto microbatches = static_cast<uint64_t>(config.train.microbatches);
  const auto sizes = boundary_sizes(config, vocab);
  const uint64_t forward = microbatches * (sizes.forward + kFrameOverheadBytes);
  const uint64_t backward = microbatches * (sizes.backward + kFrameOverheadBytes);
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

MemoryPlan memory_plan(const RunConfig& config, int64_t vocab, int64_t stage) {
  return memory_plan(config, vocab, stage, blocks_of_stage(config, stage));
}

uint64_t memory_of_run(const RunConfig& config, int64_t vocab, bool in_one_process) {
  uint64_t sum = 0, base = 0;
  for (int64_t stage = 0; stage < config.pipeline.stages; ++stage) {
    const auto plan = memory_plan(config, vocab, stage);
    base = plan.base;
    sum += plan.total() - (in_one_process ? base : 0);
  }
  return sum + base;  // the coordinator holds no tensors: it is as large as the program
}

MemoryPlan memory_plan(const RunConfig& config, int64_t vocab, int64_t stage, BlockRange blocks) {
  const Sizes s(config, vocab);
  MemoryPlan plan;
  double parameters = 0, moments = 0;
  std::vector<double> used;  // by the update of each parameter
  for (const auto& spec : model_spec(config.model, vocab, blocks)) {
    const auto& rule = rule_for(config.optim.kind, spec);
    parameters += static_cast<double>(spec.elements());
    moments += numbers_in(rule.state(spec));
    used.push_back(rule.used(spec, config.optim.state));
  }
  std::sort(used.begin(), used.end(), std::greater<>());
  const int64_t at_once =
      config.train.threads > 0 ? std::min<int64_t>(config.train.threads, kUpdatesAtOnce) : kUpdatesAtOnce;
  used.resize(std::min(used.size(), static_cast<size_t>(at_once)));
  const double update = std::accumulate(used.begin(), used.end(), 0.0);
  plan.parameters = bytes(s.number * parameters);
  plan.gradients = bytes(s.number * parameters);
  add_subspace(config, s, blocks, plan);
  plan.activations = bytes(activation_bytes(config, s, blocks, static_cast<double>(most_in_flight(config, stage))));
  if (blocks.has_head()) plan.logits = bytes(logit_bytes(s));
  // The update begins when the passes are over, and uses their memory first.
  const double passes = static_cast<double>(plan.activations + plan.logits);
  plan.optimizer = bytes(s.moment * moments + std::max(0.0, s.number * update - passes));
  // What was lost by the last commit, since then, and while a message is encoded.
  plan.queues = bytes(queue_bytes(config, vocab, stage) + 4 * left_out_bytes(config, s, blocks));
  plan.base = bytes(kBaseBytes);
  if (config.checkpoint.mode == CheckpointMode::kAsync) plan.checkpoint_copy = state_bytes(config, vocab, blocks);
  return plan;
}

std::string describe(const MemoryPlan& plan) {
  std::array<std::pair<uint64_t, std::string_view>, 8> parts{{
      {plan.parameters, "weights"},
      {plan.gradients, "gradients"},
      {plan.optimizer, "optimizer"},
      {plan.activations, "activations"},
      {plan.logits, "logits"},
      {plan.queues, "links"},
      {plan.checkpoint_copy, "checkpoint"},
      {plan.base, "program"},
  }};
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  constexpr uint64_t kMiB = 1 << 20;
  std::string out = fmt::format("{} MiB", (plan.total() + kMiB - 1) / kMiB);
  const char* before = ": ";
  for (const auto& [size, name] : parts) {
    if (size < kMiB) break;
    out += fmt::format("{}{} {}", before, name, size / kMiB);
    before = ", ";
  }
  return out;
}

}  // namespace thinpipe
