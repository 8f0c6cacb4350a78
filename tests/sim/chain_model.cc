#include "chain_model.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "config/model_spec.h"
#include "pipeline/unit_file.h"
#include "store/safetensors.h"

namespace thinpipe::sim {
namespace {

constexpr int kPieces = 4;  // of a state, 16 bits each: a float32 holds them exactly

uint64_t sum_of(const UnitStates& states) {
  uint64_t sum = 0;
  for (const auto& [unit, state] : states) sum = mix(sum, mix(stream_of(unit), state));
  return sum;
}

}  // namespace

// The finalizer of splitmix64.
uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15 + b + 0x632be59bd9b4e019;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

RunConfig sim_config(bool open) {
  RunConfig config;
  config.model.mode = ModelMode::kDense;
  config.model.d = 4;
  config.model.heads = config.model.kv_heads = 1;
  config.model.mlp_width = 4;
  config.model.blocks = config.pipeline.stages = 3;
  config.pipeline.schedule = ScheduleKind::kGpipe;
  config.optim.kind = OptimizerKind::kAdamw;
  config.optim.clip = 0.5;
  config.train.steps = 15;
  config.train.seq_len = 2;
  config.train.microbatch = 1;
  config.train.microbatches = 2;
  config.train.eval_every = 6;
  config.train.eval_sequences = 1;
  config.checkpoint.every = 4;
  config.checkpoint.keep_last = 2;
  config.cluster.lease_s = 10;
  if (!open) config.cluster.max_failures = 1000;
  return config;
}

std::vector<std::string> units_of_stage(const RunConfig& config, int64_t stage) {
  return model_units(config.model, blocks_of_stage(config, stage));
}

std::vector<std::string> units_saved_by_stage(const RunConfig& config, int64_t stage) {
  return saved_units(config.model, blocks_of_stage(config, stage));
}

UnitStates first_states(const std::vector<std::string>& units) {
  UnitStates states;
  for (const auto& unit : units) states[unit] = stream_of(unit);
  return states;
}

uint64_t token_payload(int64_t step) { return mix(17, static_cast<uint64_t>(step)); }
uint64_t loss_payload(uint64_t forward) { return mix(forward, 23); }

uint64_t forward_payload(const UnitStates& stage, uint64_t from_previous, int64_t step) {
  return mix(mix(sum_of(stage), from_previous), static_cast<uint64_t>(step));
}

uint64_t backward_payload(const UnitStates& stage, uint64_t forward, uint64_t from_next, int64_t step) {
  return mix(forward_payload(stage, from_next, step), forward);
}

control::Ready StageStep::report() const {
  const auto text = [](uint64_t payload) { return fmt::format("{:x}", payload); };
  control::Ready ready;
  ready.set_step(step);
  ready.set_squared_norm(1.0 + static_cast<double>(sent_backward % 1024) / 1024);
  if (stage == stages - 1) ready.set_loss_sum(1.0 + static_cast<double>(sent_forward % 1024) / 1024);
  if (stage > 0) {
    ready.set_received_from_previous(text(received_forward));
    ready.set_sent_to_previous(text(sent_backward));
  }
  if (stage + 1 < stages) {
    ready.set_sent_to_next(text(sent_forward));
    ready.set_received_from_next(text(received_backward));
  }
  return ready;
}

UnitStates StageStep::applied_to(const UnitStates& states, double factor) const {
  uint64_t bits = 0;
  std::memcpy(&bits, &factor, sizeof bits);
  auto next = states;
  for (auto& [unit, state] : next) state = mix(mix(state, mix(received_forward, received_backward)), bits);
  return next;
}

std::string unit_file(const RunConfig& config, const std::string& unit, int64_t step, uint64_t state,
                      int64_t basis_version) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", kUnitFormat},
                            {"unit", unit},
                            {"step", fmt::format("{}", step)},
                            {"basis_version", fmt::format("{}", basis_version)}};
  int64_t end = 0;
  for (const auto& tensor : unit_tensors(config, kVocab, unit)) {
    if (tensor.optional) continue;
    const int64_t begin = end;
    end += tensor_bytes(tensor.dtype, tensor.shape).value();
    header[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  file += text;
  const size_t data = file.size();
  file.resize(data + static_cast<size_t>(end), '\0');
  for (int i = 0; i < kPieces; ++i) {
    const auto piece = static_cast<float>((state >> (16 * i)) & 0xffff);
    std::memcpy(file.data() + data + static_cast<size_t>(i) * sizeof piece, &piece, sizeof piece);
  }
  return file;
}

Result<uint64_t> state_in(std::string_view file) {
  const auto parsed = TRY(SafetensorsFile::parse(file, "a unit's file"));
  if (parsed.tensors().empty() || parsed.tensors().front().bytes.size() < kPieces * sizeof(float)) {
    return Error{"a unit's file without a state"};
  }
  uint64_t state = 0;
  for (int i = 0; i < kPieces; ++i) {
    float piece = 0;
    std::memcpy(&piece, parsed.tensors().front().bytes.data() + static_cast<size_t>(i) * sizeof piece, sizeof piece);
    state |= static_cast<uint64_t>(piece) << (16 * i);
  }
  return state;
}

History::History(RunConfig config) : config_(std::move(config)) {
  states_.push_back(first_states(model_units(config_.model, whole_model(config_.model))));
}

UnitStates History::states_of_stage(int64_t committed, int64_t stage) const {
  UnitStates found;
  for (const auto& unit : units_of_stage(config_, stage)) found[unit] = states(committed).at(unit);
  return found;
}

std::vector<StageStep> History::run_step() const {
  const int64_t stages = config_.pipeline.stages;
  std::vector<StageStep> steps;
  uint64_t payload = token_payload(committed());
  for (int64_t stage = 0; stage < stages; ++stage) {
    auto& one = steps.emplace_back(StageStep{stage, stages, committed(), payload});
    payload = one.sent_forward = forward_payload(states_of_stage(committed(), stage), payload, committed());
  }
  payload = loss_payload(payload);
  for (int64_t stage = stages; stage-- > 0;) {
    auto& one = steps[static_cast<size_t>(stage)];
    one.received_backward = payload;
    payload = one.sent_backward =
        backward_payload(states_of_stage(committed(), stage), one.received_forward, payload, committed());
  }
  return steps;
}

std::string History::add(const CommitRow& row) {
  if (row.step != committed()) return fmt::format("row {} comes after {} rows", row.step, committed());
  const auto steps = run_step();
  std::vector<control::Ready> reports;
  for (const auto& step : steps) reports.push_back(step.report());
  const auto expected = decide(tokens_per_step(config_.train), config_.optim.clip, reports).take();
  if (row.apply && row.grad_factor != expected.grad_factor) {
    return fmt::format("step {} was committed with the factor {}, and honest stages give {}", row.step, row.grad_factor,
                       expected.grad_factor);
  }
  if (row.apply && row.loss != expected.loss) {
    return fmt::format("step {} was committed with a loss of {}, and honest stages give {}", row.step, row.loss,
                       expected.loss);
  }
  auto next = states(committed());
  for (size_t stage = 0; row.apply && stage < steps.size(); ++stage) {
    const auto before = states_of_stage(committed(), static_cast<int64_t>(stage));
    for (const auto& [unit, state] : steps[stage].applied_to(before, row.grad_factor)) next[unit] = state;
  }
  rows_.push_back(row);
  states_.push_back(std::move(next));
  return "";
}

void History::roll_back(int64_t committed) {
  rows_.resize(static_cast<size_t>(committed));
  states_.resize(static_cast<size_t>(committed) + 1);
}

}  // namespace thinpipe::sim
