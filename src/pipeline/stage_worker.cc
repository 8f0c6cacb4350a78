#include "pipeline/stage_worker.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "pipeline/basis_message.h"
#include "subspace/grassmann.h"

namespace thinpipe {
namespace {

int64_t tokens_per_step(const TrainConfig& train) { return train.microbatches * train.microbatch * train.seq_len; }

MessageNumber number_of(int64_t step, int64_t microbatch) {
  return {static_cast<uint64_t>(step), static_cast<uint64_t>(microbatch)};
}

}  // namespace

at::Device device_of(const TrainConfig& train) {
  const at::Device device(train.device);
  if (device.is_cuda() && !at::hasCUDA()) {
    throw UserError(
        fmt::format("train.device = \"{}\": this build of libtorch has no CUDA; use \"cpu\"", train.device));
  }
  return device;
}

StageWorker::StageWorker(const RunConfig& config, int64_t vocab, StagePlace place, const Schedule& schedule,
                         const BatchSource& batches)
    : config_(config),
      place_(place),
      schedule_(schedule),
      batches_(batches),
      stage_(config.model, vocab, place.range, config.train.precision, config.train.seed, device_of(config.train)),
      optimizer_(config.optim, config.train.steps, stage_.parameters()) {
  const auto cut = static_cast<int64_t>(place.number);
  if (place.previous != nullptr) before_ = make_boundary(config, vocab, cut - 1, stage_.options());
  if (place.next != nullptr) after_ = make_boundary(config, vocab, cut, stage_.options());
}

TokenBatch StageWorker::on_device(TokenBatch batch) const { return {batch.tokens.to(stage_.options().device())}; }

Status StageWorker::run(StepBarrier& barrier) {
  while (true) {
    auto command = barrier.next(place_.number);
    if (!command) return command.error();
    if (std::holds_alternative<Stop>(command.value())) return {};
    if (const auto* commit_step = std::get_if<CommitStep>(&command.value())) {
      commit(*commit_step);
      continue;
    }
    const auto* step = std::get_if<RunStep>(&command.value());
    auto report = step != nullptr ? run_step(step->step) : evaluate(std::get<Evaluate>(command.value()).windows);
    if (!report) return report.error();
    count_bytes(report.value());
    barrier.report(place_.number, std::move(report.value()));
  }
}

Result<StageReport> StageWorker::run_step(int64_t step) {
  stage_.parameters().zero_grad();
  StageReport report;
  for (const auto& action : schedule_.stages[place_.number].actions) {
    if (auto status = act(action, step, report); !status) return status.error();
  }
  report.squared_norm = optimizer_.squared_norm();
  if (moves_basis(step)) {
    if (auto status = pass_basis(report); !status) return status.error();
  }
  return report;
}

Status StageWorker::act(const Action& action, int64_t step, StageReport& report) {
  const int64_t m = action.microbatch;
  switch (action.kind) {
    case ActionKind::kReceiveForward:
      return receive_forward(m, config_.train.microbatch);
    case ActionKind::kForward: {
      ForwardContent in;
      if (before_) {
        in = std::move(arrived_.extract(m).mapped());
      } else {
        in.batch = on_device(batches_.training(step, m));
      }
      const double scale = 1.0 / static_cast<double>(tokens_per_step(config_.train));
      auto& pass = passes_[m] = stage_.forward(std::move(in.batch), in.stream, scale);
      report.loss_sum += pass.loss_sum;
      return {};
    }
    case ActionKind::kSendForward: {
      auto& pass = passes_.at(m);
      const ForwardContent content{pass.batch, std::exchange(pass.output, {})};
      return place_.next->send(after_->encode_forward(content, number_of(step, m)));
    }
    case ActionKind::kReceiveBackward: {
      auto message = place_.next->receive();
      if (!message) return message.error();
      auto grad = after_->decode_backward(message.value(), config_.train.microbatch);
      if (!grad) return grad.error();
      arrived_grads_[m] = std::move(grad.value());
      return {};
    }
    case ActionKind::kBackward: {
      at::Tensor grad;
      if (after_) grad = std::move(arrived_grads_.extract(m).mapped());
      grads_out_[m] = stage_.backward(std::move(passes_.extract(m).mapped()), std::move(grad));
      if (!before_) grads_out_.erase(m);
      return {};
    }
    case ActionKind::kSendBackward:
      return place_.previous->send(before_->encode_backward(grads_out_.extract(m).mapped(), number_of(step, m)));
  }
  return {};
}

Status StageWorker::receive_forward(int64_t microbatch, int64_t sequences) {
  auto message = place_.previous->receive();
  if (!message) return message.error();
  auto content = before_->decode_forward(message.value(), sequences);
  if (!content) return content.error();
  arrived_[microbatch] = std::move(content.value());
  return {};
}

Result<StageReport> StageWorker::evaluate(int64_t windows) {
  StageReport report;
  for (int64_t first = 0, m = 0; first < windows; first += config_.train.microbatch, ++m) {
    const int64_t count = std::min(config_.train.microbatch, windows - first);
    ForwardContent in;
    if (before_) {
      if (auto status = receive_forward(m, count); !status) return status.error();
      in = std::move(arrived_.extract(m).mapped());
    } else {
      in.batch = on_device(batches_.validation(first, count));
    }
    auto pass = stage_.evaluate(std::move(in.batch), in.stream);
    report.loss_sum += pass.loss_sum;
    if (after_) {
      // Evaluation rounds to nearest throughout, so its message number decides nothing.
      auto status = place_.next->send(after_->encode_forward({pass.batch, pass.output}, {0, 0}));
      if (!status) return status.error();
    }
  }
  return report;
}

bool StageWorker::moves_basis(int64_t step) const {
  const int64_t every = config_.model.subspace.update_every;
  return config_.model.is_subspace() && every > 0 && (step + 1) % every == 0;
}

Status StageWorker::pass_basis(StageReport& report) {
  auto& side = *stage_.subspace();
  if (after_) {
    auto message = place_.next->receive();
    if (!message) return message.error();
    auto basis = decode_basis(message.value(), side.basis());
    if (!basis) return basis.error();
    next_basis_ = std::move(basis.value());
  } else {
    const auto c = side.second_moment_with_pending();
    next_basis_ = grassmann_step(side.basis(), c, config_.model.subspace.update_rate);
    report.basis = diagnose(side.basis(), *next_basis_, c);
  }
  report.basis_hash = basis_hash(*next_basis_);
  return before_ ? place_.previous->send(encode_basis(*next_basis_)) : Status{};
}

void StageWorker::commit(const CommitStep& commit) {
  auto* side = stage_.subspace();
  if (!commit.apply) {
    if (side != nullptr) side->drop_tap();
    next_basis_.reset();
    return;
  }
  optimizer_.apply(commit.step, commit.grad_factor);
  if (side == nullptr) return;
  side->commit_tap();
  if (!next_basis_) return;
  dropped_share_ = 0;
  const auto q = change_of_coordinates(side->basis(), *next_basis_);
  for (const auto& parameter : stage_.parameters().all()) {
    if (parameter.full_width > 0) dropped_share_ = std::max(dropped_share_, dropped_share(parameter.value, q));
  }
  optimizer_.change_over(stage_.change_over(std::move(*next_basis_)));
  next_basis_.reset();
}

void StageWorker::count_bytes(StageReport& report) {
  const auto sent = [](Link* link, uint64_t& counted) {
    if (link == nullptr) return uint64_t{0};
    const uint64_t total = link->meter().bytes_sent;
    return total - std::exchange(counted, total);
  };
  report.forward_bytes = sent(place_.next, counted_forward_);
  report.backward_bytes = sent(place_.previous, counted_backward_);
  report.dropped_share = std::exchange(dropped_share_, 0);
}

}  // namespace thinpipe
