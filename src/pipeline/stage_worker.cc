#include "pipeline/stage_worker.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "base/result.h"
#include "base/sha256.h"
#include "boundary/sizes.h"
#include "model/fill.h"
#include "model/grassmann.h"
#include "pipeline/schedule.h"
#include "pipeline/step.h"

namespace thinpipe {
namespace {

// Adds the time of its existence to `total`.
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

// In one pass. A sum that overflows counts as not finite too; no healthy run comes near it.
bool all_finite(const at::Tensor& numbers) { return std::isfinite(numbers.sum().item<double>()); }

}  // namespace

// ---- a step ----

// Notes when the computing of a microbatch began and ended, in steps that are traced.
class StageWorker::TracedPass {
 public:
  TracedPass(StageWorker& worker, bool backward, int64_t microbatch) : worker_(worker) {
    pass_.set_backward(backward);
    pass_.set_microbatch(microbatch);
    pass_.set_begin_s(now());
  }
  ~TracedPass() {
    if (!traces_step(worker_.step_)) return;
    pass_.set_end_s(now());
    *worker_.report_.add_passes() = pass_;
  }
  TracedPass(const TracedPass&) = delete;
  TracedPass& operator=(const TracedPass&) = delete;

 private:
  float now() const { return static_cast<float>(seconds(SystemClock().now() - worker_.times_.began)); }

  StageWorker& worker_;
  control::Pass pass_;
};

Result<control::Ready> StageWorker::run_step(uint64_t epoch, int64_t step) {
  TP_CHECK(step == applied_, "asked to run step {}, but {} is next", step, applied_);
  begin(epoch, step);
  {
    const Stopwatch total(times_.total_s);
    stage_.parameters().zero_grad();
    if (auto* side = stage_.subspace()) side->begin_step(moves_basis_later());
    for (const auto& pass : passes(config_.pipeline.schedule, place_.number, config_.pipeline.stages,
                                   config_.train.microbatches, warmup_)) {
      TRY(pass.forward ? forward(pass.microbatch) : backward(pass.microbatch));
      note_pass();
    }
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : stage_.parameters().all()) gradients.push_back(parameter.grad);
    TRY(replicas_->sum(epoch, step, gradients));
    report_.set_squared_norm(optimizer_.squared_norm());
    TRY(exchange_end_of_step());
  }
  return report();
}

Status StageWorker::forward(int64_t m) {
  auto in = TRY(before_ ? receive_activation(PacketKind::kForward, m, config_.train.microbatch)
                        : tokens(batches_->training(step_, m)));
  if (const auto right = check_tokens(in.batch, m); !right) {
    return before_ ? previous_->refuse(right.error()) : right.error();
  }
  if (before_ && !all_finite(in.stream)) report_.set_nonfinite_from_previous(true);
  auto& pass = passes_[m];
  {
    const Stopwatch computing(times_.forward_s);
    const double loss_scale = 1.0 / static_cast<double>(tokens_per_step(config_.train));
    const TracedPass traced(*this, false, m);
    pass = stage_.forward(std::move(in.batch), in.stream, loss_scale);  // keeps what backward needs
    report_.set_loss_sum(report_.loss_sum() + pass.loss_sum);
  }
  if (!after_) return {};
  return send(*next_, PacketKind::kForward, m, after_->encode({pass.batch, std::exchange(pass.output, {})}, number(m)));
}

Status StageWorker::backward(int64_t m) {
  at::Tensor grad;  // dL/d(output), then dL/d(input)
  if (after_) {
    grad = TRY(receive_gradient(m));
    if (!all_finite(grad)) report_.set_nonfinite_from_next(true);
  }
  {
    const Stopwatch computing(times_.backward_s);
    const TracedPass traced(*this, true, m);
    grad = stage_.backward(std::move(passes_.extract(m).mapped()), std::move(grad));  // adds to the gradients
  }
  if (!before_) return {};
  return send(*previous_, PacketKind::kBackward, m, before_->encode_gradient(grad, number(m)));
}

void StageWorker::begin(uint64_t epoch, int64_t step) {
  epoch_ = epoch;
  step_ = step;
  report_.Clear();
  report_.set_epoch(epoch);
  report_.set_step(step);
  times_ = {.began = SystemClock().now()};
  with_previous_ = {};
  with_next_ = {};
  passes_.clear();
  if (previous_ != nullptr) previous_->enter(epoch, step);
  if (next_ != nullptr) next_->enter(epoch, step);
}

Status StageWorker::exchange_end_of_step() {
  if (!after_) form_next_basis();
  for (const auto direction : {Direction::kBackward, Direction::kForward}) {
    const bool up = direction == Direction::kBackward;
    auto* const from = (up ? after_ : before_).get();
    auto* const to = (up ? before_ : after_).get();
    if (from != nullptr && from->has_end_of_step(direction, step_)) {
      auto& link = up ? *next_ : *previous_;
      const auto message = TRY(receive(link, PacketKind::kEndOfStep, 0));
      const auto taken = from->take_end_of_step(direction, std::as_bytes(std::span(message)));
      if (!taken) return link.refuse(taken.error());
    }
    if (to != nullptr && to->has_end_of_step(direction, step_))
      TRY(send(up ? *previous_ : *next_, PacketKind::kEndOfStep, 0, to->end_of_step(direction)));
  }
  return {};
}

void StageWorker::form_next_basis() {
  auto* const side = stage_.subspace();
  if (side == nullptr || !side->moves_at(step_)) return;
  // C of the steps before: the clipping factor of this step, and whether it is applied, are not known yet.
  const auto c = side->second_moment_or_zeros();
  auto next = grassmann_step(side->basis(), c, config_.model.subspace.update_rate);
  const auto move = diagnose(side->basis(), next, c);
  auto& told = *report_.mutable_basis();
  told.set_version(move.version);
  told.mutable_angles_rad()->Add(move.angles_rad.begin(), move.angles_rad.end());
  told.set_energy_inside(move.energy_inside);
  told.set_smallest_gram(move.smallest_gram);
  told.set_largest_gram(move.largest_gram);
  side->set_next_basis(std::move(next));
}

control::Ready StageWorker::report() {
  if (const auto* side = stage_.subspace(); side != nullptr && side->next_basis())
    report_.set_basis_hash(basis_hash(*side->next_basis()));
  report_.set_dropped_share(dropped_share_);
  report_.set_update_s(update_s_);
  report_.set_forward_s(times_.forward_s);
  report_.set_backward_s(times_.backward_s);
  report_.set_wait_s(times_.wait_s);
  report_.set_total_s(times_.total_s);
  report_.set_sent_to_previous(with_previous_.sent.hex());
  report_.set_received_from_previous(with_previous_.received.hex());
  report_.set_sent_to_next(with_next_.sent.hex());
  report_.set_received_from_next(with_next_.received.hex());
  return report_;
}

void StageWorker::commit(const control::Commit& commit) {
  TP_CHECK(commit.step() == applied_, "asked to commit step {}, but {} is next", commit.step(), applied_);
  ++applied_;
  dropped_share_ = 0;
  update_s_ = 0;
  const Stopwatch updating(update_s_);
  if (before_) before_->commit(commit.apply());
  if (after_) after_->commit(commit.apply());
  auto* side = stage_.subspace();
  if (!commit.apply()) {
    if (side != nullptr) side->drop_tap();
    return;
  }
  optimizer_.apply(commit.step(), commit.grad_factor());
  if (side == nullptr) return;
  if (side->next_basis()) {
    const auto q = change_of_coordinates(side->basis(), *side->next_basis());
    for (const auto& parameter : stage_.parameters().all()) {
      if (parameter.full_width > 0) dropped_share_ = std::max(dropped_share_, dropped_share(parameter.value, q));
    }
    optimizer_.change_over(stage_.change_over(*side->next_basis()));
    for (const auto& sending : sending_sides()) sending.boundary->set_left_out({});  // it was in the old coordinates
  }
  side->commit_tap(commit.grad_factor());  // after an update of the basis, which starts a new C
}

// ---- evaluation ----

Result<double> StageWorker::evaluate(uint64_t epoch, int64_t step, int64_t windows,
                                     const std::function<void(int64_t)>& on_done) {
  begin(epoch, step);
  double loss_sum = 0;
  for (int64_t first = 0, m = 0; first < windows; first += config_.train.microbatch, ++m) {
    const int64_t count = std::min(config_.train.microbatch, windows - first);
    auto in = TRY(before_ ? receive_activation(PacketKind::kEvalForward, m, count)
                          : tokens(batches_->validation(first, count)));
    const auto pass = stage_.evaluate(std::move(in.batch), in.stream);
    loss_sum += pass.loss_sum;
    if (on_done) on_done(first + count);
    note_pass();
    if (!after_) continue;
    const MessageNumber number{0, 0, /*evaluation=*/true};
    TRY(send(*next_, PacketKind::kEvalForward, m, after_->encode({pass.batch, pass.output}, number)));
  }
  return loss_sum;
}

// ---- messages ----

Result<Activation> StageWorker::tokens(Result<TokenBatch> batch) const {
  if (!batch) return batch.error();
  return Activation{{batch.value().tokens.to(stage_.options().device())}, {}};
}

Status StageWorker::check_tokens(const TokenBatch& batch, int64_t microbatch) const {
  const auto number = static_cast<size_t>(microbatch);
  if (number >= expected_ids_.size()) return {};
  const auto tokens = batch.tokens.to(at::kInt).cpu().contiguous();
  if (sha256_hex(tensor_bytes_of(tokens)) == expected_ids_[number]) return {};
  return Error{fmt::format("the token ids of microbatch {} are not those of the run's corpus", microbatch)};
}

Result<Activation> StageWorker::receive_activation(PacketKind kind, int64_t microbatch, int64_t sequences) {
  const auto message = TRY(receive(*previous_, kind, microbatch));
  auto activation = before_->decode(std::as_bytes(std::span(message)), sequences);
  if (!activation) return previous_->refuse(activation.error());
  return activation;
}

Result<at::Tensor> StageWorker::receive_gradient(int64_t microbatch) {
  const auto message = TRY(receive(*next_, PacketKind::kBackward, microbatch));
  auto gradient = after_->decode_gradient(std::as_bytes(std::span(message)), config_.train.microbatch);
  if (!gradient) return next_->refuse(gradient.error());
  return gradient;
}

Result<std::string> StageWorker::receive(PacketLink& link, PacketKind kind, int64_t microbatch) {
  const Stopwatch waiting(times_.wait_s);
  const WaitingFor shown(progress_, side_of(link));
  auto payload = link.receive({epoch_, step_, microbatch, kind}, basis_version());
  if (payload) (&link == next_ ? with_next_ : with_previous_).received.add(kind, microbatch, payload.value());
  if (payload && progress_ != nullptr) progress_->bytes_received += payload.value().size();
  return payload;
}

Status StageWorker::send(PacketLink& link, PacketKind kind, int64_t microbatch, std::span<const std::byte> payload) {
  const size_t bytes = payload.size();
  const bool down = &link == next_;
  (down ? with_next_ : with_previous_)
      .sent.add(kind, microbatch, {reinterpret_cast<const char*>(payload.data()), bytes});
  const WaitingFor shown(progress_, side_of(link));
  TRY(link.send({epoch_, step_, microbatch, kind}, payload, basis_version()));
  if (down) report_.set_forward_bytes(report_.forward_bytes() + bytes);
  if (!down) report_.set_backward_bytes(report_.backward_bytes() + bytes);
  if (progress_ != nullptr) progress_->bytes_sent += bytes;
  return {};
}

WorkProgress::Waits StageWorker::side_of(const PacketLink& link) const {
  return &link == next_ ? WorkProgress::Waits::kNext : WorkProgress::Waits::kPrevious;
}

void StageWorker::note_pass() const {
  if (progress_ != nullptr) ++progress_->done;
}

MessageNumber StageWorker::number(int64_t microbatch) const {
  return {static_cast<uint64_t>(step_), static_cast<uint64_t>(microbatch)};
}

bool StageWorker::moves_basis_later() const {
  const int64_t every = config_.model.subspace.update_every;
  return every > 0 && ((step_ + 1) / every + 1) * every <= config_.train.steps;
}

// ---- construction ----

StageWorker::StageWorker(const RunConfig& config, int64_t vocab, StagePlace place, Batches* batches,
                         const at::Tensor& table)
    : config_(config),
      vocab_(vocab),
      place_(place),
      batches_(batches),
      stage_(config.model, vocab, place.range, config.train.precision, config.train.seed, device_of(config.train),
             table),
      optimizer_(config.optim, config.train.steps, stage_.parameters(), config.train.seed) {
  stage_.recompute_blocks(config.train.recompute == Recompute::kBlock);
  const auto boundary = [&](int64_t cut) {
    return make_boundary({config, vocab, cut, stage_.options(), stage_.subspace(), &stage_.parameters()});
  };
  const auto number = static_cast<int64_t>(place.number);
  if (place.number > 0) before_ = boundary(number - 1);
  if (place.number + 1 < place.count) after_ = boundary(number);
}

void StageWorker::connect(PacketLink* previous, PacketLink* next) {
  TP_CHECK((previous != nullptr) == (before_ != nullptr) && (next != nullptr) == (after_ != nullptr),
           "stage {} of {} connected on the wrong sides", place_.number, place_.count);
  previous_ = previous;
  next_ = next;
}

int64_t StageWorker::basis_version() const {
  const auto* side = stage_.subspace();
  return side != nullptr ? side->basis().version : 0;
}

std::string StageWorker::current_basis_hash() const {
  const auto* side = stage_.subspace();
  return side != nullptr ? basis_hash(side->basis()) : "";
}

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
  cpu_set_t allowed;  // to this process; the machine may have more
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

StagePlace stage_place(const RunConfig& config, size_t number) {
  return {number, static_cast<size_t>(config.pipeline.stages), blocks_of_stage(config, static_cast<int64_t>(number))};
}

size_t max_payload_bytes(const RunConfig& config, int64_t vocab) { return boundary_sizes(config, vocab).largest(); }

PacketRules packet_rules(const RunConfig& config, int64_t vocab, int64_t cut) {
  constexpr int64_t kMostEvaluationBatches = int64_t{1} << 20;
  const auto sizes = boundary_sizes(config, vocab);
  return {.boundary = cut,
          .microbatches = config.train.microbatches,
          .eval_microbatches = kMostEvaluationBatches,
          .most_bytes = {sizes.forward, sizes.backward, sizes.end_of_step, sizes.forward}};
}

}  // namespace thinpipe
