#include "pipeline/stage_worker.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "pipeline/basis_message.h"
#include "subspace/grassmann.h"

namespace thinpipe {
namespace {

int64_t tokens_per_step(const TrainConfig& train) { return train.microbatches * train.microbatch * train.seq_len; }

MessageNumber number_of(int64_t step, int64_t microbatch) {
  return {static_cast<uint64_t>(step), static_cast<uint64_t>(microbatch)};
}

// Adds the time it lives to `total`.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(clock_.now()) {}
  ~Stopwatch() { total_ += seconds(clock_.now() - start_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  SystemClock clock_;
  double& total_;
  TimePoint start_;
};

// One pass over it; a sum that overflows counts as well, which no healthy run comes near.
bool all_finite(const at::Tensor& numbers) { return std::isfinite(numbers.sum().item<double>()); }

}  // namespace

at::Device device_of(const TrainConfig& train) {
  const at::Device device(train.device);
  if (device.is_cuda() && !at::hasCUDA()) {
    throw UserError(
        fmt::format("train.device = \"{}\": this build of libtorch has no CUDA; use \"cpu\"", train.device));
  }
  return device;
}

int threads_for(const RunConfig& config) {
  if (config.train.threads > 0) return static_cast<int>(config.train.threads);
  return config.pipeline.stages == 1 ? static_cast<int>(std::max(1u, std::thread::hardware_concurrency())) : 1;
}

Schedule schedule_for(const RunConfig& config, const std::vector<int64_t>& warmup) {
  const int64_t stages = config.pipeline.stages, microbatches = config.train.microbatches;
  if (config.pipeline.schedule == ScheduleKind::kGpipe) return make_gpipe(stages, microbatches);
  if (!warmup.empty()) return make_1f1b(stages, microbatches, warmup);
  return make_1f1b(stages, microbatches, covering_warmup(stages, microbatches, {1.0, 2.0, 0.0, 0.0}, 0));
}

StagePlace stage_place(const RunConfig& config, size_t number) {
  const auto cuts = blocks_per_stage(config);
  int64_t first = 0;
  for (size_t i = 0; i < number; ++i) first += cuts[i];
  return {number, cuts.size(), {first, first + cuts[number], config.model.blocks}};
}

PacketRules packet_rules(const RunConfig& config, int64_t vocab, int64_t cut, RunTag run) {
  // Any device will do: only sizes are asked.
  const auto boundary = make_boundary(config, vocab, cut, at::TensorOptions());
  const int64_t sequences = config.train.microbatch;
  size_t largest = std::max(boundary->forward_bytes(sequences), boundary->backward_bytes(sequences));
  if (config.model.is_subspace())
    largest = std::max(largest, basis_message_bytes(config.model.d, config.model.subspace.rank));
  constexpr int64_t kMostEvaluationBatches = int64_t{1} << 20;
  return {.run = run,
          .boundary = cut,
          .boundary_kind = static_cast<uint8_t>(config.model.is_subspace() ? 0 : 1),
          .pack = static_cast<uint8_t>(config.boundary.pack),
          .max_payload_bytes = largest,
          .microbatches = config.train.microbatches,
          .eval_microbatches = kMostEvaluationBatches};
}

StageWorker::StageWorker(const RunConfig& config, int64_t vocab, StagePlace place, Batches& batches,
                         const at::Tensor& table)
    : config_(config),
      place_(place),
      schedule_(schedule_for(config, {})),
      batches_(batches),
      stage_(config.model, vocab, place.range, config.train.precision, config.train.seed, device_of(config.train),
             table),
      optimizer_(config.optim, config.train.steps, stage_.parameters()) {
  const auto cut = static_cast<int64_t>(place.number);
  if (place.number > 0) before_ = make_boundary(config, vocab, cut - 1, stage_.options());
  if (place.number + 1 < place.count) after_ = make_boundary(config, vocab, cut, stage_.options());
}

void StageWorker::connect(PacketLink* previous, PacketLink* next) {
  TP_CHECK((previous != nullptr) == (before_ != nullptr) && (next != nullptr) == (after_ != nullptr),
           "stage {} of {} connected on the wrong sides", place_.number, place_.count);
  previous_ = previous;
  next_ = next;
}

void StageWorker::set_warmup(const std::vector<int64_t>& warmup) {
  if (warmup == warmup_) return;
  schedule_ = schedule_for(config_, warmup);
  warmup_ = warmup;
}

int64_t StageWorker::basis_version() const {
  const auto* side = const_cast<Stage&>(stage_).subspace();
  return side != nullptr ? side->basis().version : 0;
}

std::string StageWorker::current_basis_hash() const {
  const auto* side = const_cast<Stage&>(stage_).subspace();
  return side != nullptr ? basis_hash(side->basis()) : "";
}

void StageWorker::begin_pass(uint64_t epoch, int64_t step) {
  epoch_ = epoch;
  arrived_.clear();
  arrived_grads_.clear();
  passes_.clear();
  grads_out_.clear();
  if (previous_ != nullptr) previous_->enter(epoch, step);
  if (next_ != nullptr) next_->enter(epoch, step);
  sent_before_ = next_ != nullptr ? next_->meter().payload_bytes_sent : 0;
  sent_before_back_ = previous_ != nullptr ? previous_->meter().payload_bytes_sent : 0;
}

void StageWorker::end_pass(StageReport& report) {
  if (next_ != nullptr) report.forward_bytes = next_->meter().payload_bytes_sent - sent_before_;
  if (previous_ != nullptr) report.backward_bytes = previous_->meter().payload_bytes_sent - sent_before_back_;
}

Result<StageReport> StageWorker::run_step(uint64_t epoch, int64_t step) {
  TP_CHECK(step == applied_, "step {} is to be run where {} is next", step, applied_);
  StageReport report;
  {
    const Stopwatch total(report.total_s);
    begin_pass(epoch, step);
    next_basis_.reset();
    if (auto* side = stage_.subspace()) side->begin_step(moves_basis_after(step));
    stage_.parameters().zero_grad();
    for (const auto& action : schedule_.stages[place_.number].actions) {
      if (auto status = act(action, step, report); !status) return status.error();
    }
    report.squared_norm = optimizer_.squared_norm();
    if (moves_basis(step)) {
      if (auto status = pass_basis(step, report); !status) return status.error();
    }
    end_pass(report);
    report.dropped_share = dropped_share_;
    report.update_s = update_s_;
  }
  return report;
}

Status StageWorker::send(PacketLink& link, PacketKind kind, int64_t step, int64_t microbatch,
                         std::vector<std::byte> payload, int64_t sequences) {
  const int64_t rows = kind == PacketKind::kBasis ? config_.model.d : sequences * config_.train.seq_len;
  return link.send({epoch_, step, microbatch, kind}, std::move(payload), rows, config_.model.boundary_width(),
                   basis_version());
}

Result<std::vector<std::byte>> StageWorker::receive(PacketLink& link, PacketKind kind, int64_t step, int64_t microbatch,
                                                    StageReport& report) {
  const Stopwatch waiting(report.wait_s);
  return link.receive({epoch_, step, microbatch, kind}, basis_version());
}

Status StageWorker::act(const Action& action, int64_t step, StageReport& report) {
  const int64_t m = action.microbatch;
  const int64_t sequences = config_.train.microbatch;
  switch (action.kind) {
    case ActionKind::kReceiveForward: {
      auto content = receive_forward(PacketKind::kForward, step, m, sequences, report);
      if (!content) return content.error();
      report.nonfinite_from_previous |= !all_finite(content.value().stream);
      arrived_[m] = std::move(content.value());
      return {};
    }
    case ActionKind::kForward: {
      auto in = input_of(step, m);
      if (!in) return in.error();
      const Stopwatch computing(report.forward_s);
      const double scale = 1.0 / static_cast<double>(tokens_per_step(config_.train));
      auto& pass = passes_[m] = stage_.forward(std::move(in.value().batch), in.value().stream, scale);
      report.loss_sum += pass.loss_sum;
      return {};
    }
    case ActionKind::kSendForward: {
      auto& pass = passes_.at(m);
      const ForwardContent content{pass.batch, std::exchange(pass.output, {})};
      return send(*next_, PacketKind::kForward, step, m, after_->encode_forward(content, number_of(step, m)),
                  sequences);
    }
    case ActionKind::kReceiveBackward: {
      auto message = receive(*next_, PacketKind::kBackward, step, m, report);
      if (!message) return message.error();
      auto grad = after_->decode_backward(message.value(), sequences);
      if (!grad) return grad.error();
      report.nonfinite_from_next |= !all_finite(grad.value());
      arrived_grads_[m] = std::move(grad.value());
      return {};
    }
    case ActionKind::kBackward: {
      const Stopwatch computing(report.backward_s);
      at::Tensor grad;
      if (after_) grad = std::move(arrived_grads_.extract(m).mapped());
      grads_out_[m] = stage_.backward(std::move(passes_.extract(m).mapped()), std::move(grad));
      if (!before_) grads_out_.erase(m);
      return {};
    }
    case ActionKind::kSendBackward:
      return send(*previous_, PacketKind::kBackward, step, m,
                  before_->encode_backward(grads_out_.extract(m).mapped(), number_of(step, m)), sequences);
  }
  return {};
}

Result<ForwardContent> StageWorker::input_of(int64_t step, int64_t microbatch) {
  if (before_) return std::move(arrived_.extract(microbatch).mapped());
  auto batch = batches_.training(step, microbatch);
  if (!batch) return batch.error();
  return ForwardContent{{batch.value().tokens.to(stage_.options().device())}, {}};
}

Result<ForwardContent> StageWorker::receive_forward(PacketKind kind, int64_t step, int64_t microbatch,
                                                    int64_t sequences, StageReport& report) {
  auto message = receive(*previous_, kind, step, microbatch, report);
  if (!message) return message.error();
  return before_->decode_forward(message.value(), sequences);
}

Result<StageReport> StageWorker::evaluate(uint64_t epoch, int64_t step, int64_t windows) {
  StageReport report;
  begin_pass(epoch, step);
  for (int64_t first = 0, m = 0; first < windows; first += config_.train.microbatch, ++m) {
    const int64_t count = std::min(config_.train.microbatch, windows - first);
    ForwardContent in;
    if (before_) {
      auto content = receive_forward(PacketKind::kEvalForward, step, m, count, report);
      if (!content) return content.error();
      in = std::move(content.value());
    } else {
      auto batch = batches_.validation(first, count);
      if (!batch) return batch.error();
      in.batch = {batch.value().tokens.to(stage_.options().device())};
    }
    auto pass = stage_.evaluate(std::move(in.batch), in.stream);
    report.loss_sum += pass.loss_sum;
    if (after_) {
      // Evaluation rounds to nearest throughout, so its message number decides nothing.
      auto status = send(*next_, PacketKind::kEvalForward, step, m,
                         after_->encode_forward({pass.batch, pass.output}, {0, 0}), count);
      if (!status) return status.error();
    }
  }
  end_pass(report);
  return report;
}

bool StageWorker::moves_basis(int64_t step) const {
  const int64_t every = config_.model.subspace.update_every;
  return config_.model.is_subspace() && every > 0 && (step + 1) % every == 0;
}

bool StageWorker::moves_basis_after(int64_t step) const {
  const int64_t every = config_.model.subspace.update_every;
  return config_.model.is_subspace() && every > 0 && ((step + 1) / every + 1) * every <= config_.train.steps;
}

Status StageWorker::pass_basis(int64_t step, StageReport& report) {
  auto& side = *stage_.subspace();
  if (after_) {
    auto message = receive(*next_, PacketKind::kBasis, step, 0, report);
    if (!message) return message.error();
    auto basis = decode_basis(message.value(), side.basis());
    if (!basis) return basis.error();
    next_basis_ = std::move(basis.value());
  } else {
    // Of the steps before: by what factor this one is clipped, if it is applied at all, is not known yet.
    const auto c = side.second_moment_or_zeros();
    next_basis_ = grassmann_step(side.basis(), c, config_.model.subspace.update_rate);
    report.basis = diagnose(side.basis(), *next_basis_, c);
  }
  report.basis_hash = basis_hash(*next_basis_);
  return before_ ? send(*previous_, PacketKind::kBasis, step, 0, encode_basis(*next_basis_), 0) : Status{};
}

void StageWorker::commit(const CommitStep& commit) {
  TP_CHECK(commit.step == applied_, "commit of step {} where {} is next", commit.step, applied_);
  ++applied_;
  dropped_share_ = 0;
  update_s_ = 0;
  const Stopwatch updating(update_s_);
  auto* side = stage_.subspace();
  if (!commit.apply) {
    if (side != nullptr) side->drop_tap();
    next_basis_.reset();
    return;
  }
  optimizer_.apply(commit.step, commit.grad_factor);
  if (side == nullptr) return;
  if (next_basis_) {
    const auto q = change_of_coordinates(side->basis(), *next_basis_);
    for (const auto& parameter : stage_.parameters().all()) {
      if (parameter.full_width > 0) dropped_share_ = std::max(dropped_share_, dropped_share(parameter.value, q));
    }
    optimizer_.change_over(stage_.change_over(std::move(*next_basis_)));
    next_basis_.reset();
  }
  side->commit_tap(commit.grad_factor);  // after a move, which begins a new C
}

}  // namespace thinpipe
