#include "worker.h"

#include <fmt/format.h>

#include <limits>

#include "base/sha256.h"
#include "coordinator.h"
#include "world.h"

namespace thinpipe::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kBeat = milliseconds(500);
constexpr auto kPoll = milliseconds(150);
constexpr auto kDialPatience = seconds(12);  // for a neighbour
constexpr size_t kMostRemembered = 20;
constexpr int64_t kFloodPackets = 50;

}  // namespace

const char* name_of(Lie lie) {
  static constexpr const char* kNames[] = {"nothing",
                                           "trouble",
                                           "fatal trouble",
                                           "numbers that are not finite",
                                           "a negative norm",
                                           "a negative loss",
                                           "other payloads",
                                           "another basis",
                                           "garbage files",
                                           "NaN files",
                                           "files of another step",
                                           "files of another basis",
                                           "a huge file",
                                           "crumbs of files",
                                           "another stage's files",
                                           "slow uploads",
                                           "a claim",
                                           "another's name",
                                           "floods",
                                           "silent lines",
                                           "replays",
                                           "floods of packets",
                                           "hanging"};
  return kNames[static_cast<size_t>(lie)];
}

// ---- the process ----

void SimWorker::start() {
  if (is_alive()) return;
  ++life_;
  WorkerFacts facts;
  facts.run = world_.run();
  facts.coordinator = "the coordinator";
  facts.config_sha256 = world_.config_sha256();
  facts.stages = world_.config().pipeline.stages;
  facts.blocks = world_.config().model.blocks;
  facts.peer = peer_;
  facts.incarnation = fmt::format("{} {}", peer_, life_);
  facts.addresses = {fmt::format("10.0.0.{}:1", 1 + world_.number_of(peer_))};
  core_ = std::make_unique<WorkerCore>(facts, world_.now());
  trouble_until(world_.now());
  frozen_until_ = {};
  pulse_ = {};
  world_.trace("{} starts", facts.incarnation);
  dial();
  beat();
}

void SimWorker::die() {
  if (!is_alive()) return;
  world_.trace("{} dies", peer_);
  ++life_;
  core_.reset();
  work_.reset();
  ++work_number_;
  states_.clear();
  gradient_.reset();
  at_ = {};
  has_state_ = false;
  uploads_.clear();
  revisions_.clear();
  from_previous_.reset();
  from_next_.reset();
  said_.clear();
  trouble_until(world_.now());
  if (line_) world_.break_line(line_, /*silently=*/false);
  line_.reset();
}

void SimWorker::freeze(Duration time) {
  frozen_until_ = std::max(frozen_until_, world_.now() + time);
  trouble_until(frozen_until_);
}

bool SimWorker::is_frozen() const { return world_.now() < frozen_until_; }

void SimWorker::leave() {
  if (!is_alive() || core_->ended()) return;
  left = true;
  act(core_->leave(world_.now()));
}

// What a frozen process would do happens when it wakes up; what a dead one would do, never.
void SimWorker::later(Duration delay, std::function<void()> what) {
  world_.events().after(delay, [this, life = life_, what = std::move(what)] {
    if (life != life_) return;
    if (is_frozen()) return later(frozen_until_ - world_.now(), what);
    what();
  });
}

void SimWorker::when_awake(const std::function<void()>& what) {
  if (is_frozen()) return later(frozen_until_ - world_.now(), what);
  what();
}

void SimWorker::later_in_work(Duration delay, std::function<void()> what) {
  later(delay, [this, number = work_number_, what = std::move(what)] {
    if (number == work_number_) what();
  });
}

// ---- the line to the coordinator ----

void SimWorker::dial() {
  if (!is_alive() || core_->ended() || line_) return;
  line_ = world_.connect(*this);
  if (line_) {
    auto hello = first_words();
    return world_.to_coordinator(line_, hello);
  }
  act(core_->disconnected(world_.now()));
  later(world_.dice().between(milliseconds(200), seconds(1)), [this] { dial(); });
}

control::FromWorker SimWorker::first_words() {
  auto message = core_->connected();
  auto& hello = *message.mutable_hello();
  if (lie_ == Lie::kOtherName) hello.set_peer(world_.other_peer(peer_));
  if (lie_ == Lie::kClaim) {
    if (const auto claim = world_.claim_of(*this)) *hello.mutable_holding() = *claim;
  }
  return message;
}

void SimWorker::line_ended(const Connection* line) {
  if (line_.get() != line) return;
  line_.reset();
  if (!is_alive() || core_->ended()) return;
  act(core_->disconnected(world_.now()));
  later(world_.dice().between(milliseconds(20), seconds(1)), [this] { dial(); });
}

void SimWorker::hear(const control::ToWorker& message) {
  if (!is_alive()) return;
  if (message.has_form() && !revisions_.contains(message.form().epoch())) {
    revisions_[message.form().epoch()] = message.revision();
  }
  act(core_->message(message));
}

void SimWorker::beat() {
  if (!is_alive() || core_->ended()) return;
  act(core_->tick(pulse_));
  lie_aloud();
  later(kBeat, [this] { beat(); });
}

void SimWorker::say(control::FromWorker message) {
  if (!line_) return;
  if (!message.has_heartbeat()) said_.push_back(message);
  if (said_.size() > kMostRemembered) said_.pop_front();
  world_.to_coordinator(line_, message);
}

void SimWorker::lie_aloud() {
  control::FromWorker message;
  message.set_revision(at_.revision);
  if (lie_ == Lie::kTrouble || lie_ == Lie::kFatal) {
    message.mutable_trouble()->set_epoch(at_.epoch);
    message.mutable_trouble()->set_reason("a lie");
    message.mutable_trouble()->set_fatal(lie_ == Lie::kFatal);
    message.mutable_trouble()->set_from_next(true);
    say(message);
  } else if (lie_ == Lie::kReplay && world_.dice().one_in(2)) {
    message.set_revision(at_.revision + 1);
    message.mutable_trouble()->set_epoch(at_.epoch);
    message.mutable_trouble()->set_reason("a lie to another start");
    say(message);
  } else if (lie_ == Lie::kReplay && !said_.empty()) {
    say(said_[world_.dice().below(said_.size())]);
  } else if (lie_ == Lie::kFlood && line_) {
    dial_again();
  } else if (lie_ == Lie::kClaim && world_.can_claim_vacant(*this) && world_.dice().one_in(4)) {
    dial_again();
  } else if (lie_ == Lie::kSilentLines) {
    (void)world_.connect(*this);
  } else if (lie_ == Lie::kPackets && has_state_) {
    flood_neighbours();
  }
}

void SimWorker::dial_again() {
  world_.break_line(line_, /*silently=*/false);
  line_.reset();
  dial();
}

void SimWorker::falsify(control::Ready& ready) const {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  if (lie_ == Lie::kNotFinite) world_.dice().one_in(2) ? ready.set_squared_norm(kNaN) : ready.set_loss_sum(kNaN);
  if (lie_ == Lie::kNegativeLoss) ready.set_loss_sum(-1e9);
  if (lie_ == Lie::kNegativeNorm) ready.set_squared_norm(-1e300);
  if (lie_ == Lie::kOtherBasis) ready.set_basis_hash("other");
}

// ---- effects ----

void SimWorker::act(const WorkerEffects& effects) {
  for (const auto& effect : effects) std::visit([&](const auto& one) { carry_out(one); }, effect);
}

void SimWorker::carry_out(const Say& one) { say(one.message); }
void SimWorker::carry_out(const Interrupt&) { interrupted_ = work_.has_value(); }

void SimWorker::carry_out(const AnswerProbe& question) {
  later(milliseconds(50), [this, probe = question.probe] {
    control::FromWorker answer;
    answer.mutable_probed()->set_incarnation(probe.incarnation());
    if (world_.reaches(peer_, probe.peer())) answer.mutable_probed()->set_address(probe.addresses(0));
    say(answer);
  });
}

void SimWorker::carry_out(const End& end) {
  world_.trace("{} ends: {}", peer_, end.why);
  const bool comes_back = end.outdated || end.retry_after > Duration{};
  if (end.failed && !end.outdated) away_until = std::max(away_until, world_.now() + end.retry_after);
  if (end.failed && !comes_back) left = true;
  // The core is at work: the process ends after this event.
  later(milliseconds(1), [this, comes_back, wait = end.retry_after] {
    die();
    if (comes_back) world_.events().after(wait + milliseconds(10), [this] { start(); });
  });
}

void SimWorker::carry_out(const Work& work) {
  if (work_) throw Violation(peer_ + " is to do two things at once");
  work_ = work;
  ++work_number_;
  interrupted_ = false;
  std::visit([&](const auto& one) { begin(one); }, work);
}

void SimWorker::finish(WorkDone result) {
  work_.reset();
  ++work_number_;
  pulse_.set_waits(control::Heartbeat::NOTHING);
  pulse_.set_done(pulse_.done() + 1);
  act(core_->done(std::move(result)));
}

// ---- work ----

void SimWorker::begin(const TakeSeat& work) {
  const auto& form = work.form;
  at_ = {revisions_.at(form.epoch()), form.epoch()};
  has_state_ = false;
  from_previous_.emplace(world_.config().train.microbatches, form.epoch());
  from_next_.emplace(world_.config().train.microbatches, form.epoch());
  stage_ = form.seat().stage();
  previous_ = form.previous().peer();
  next_ = form.next().peer();
  if (!form.restore()) {
    check_states(form.step(), "keeps");
    has_state_ = true;
    return later_in_work(milliseconds(20), [this] { link_up(world_.now()); });
  }
  states_ = first_states(units_of_stage(world_.config(), stage_));
  gradient_.reset();
  uploads_.clear();
  ++saves_;
  later_in_work(milliseconds(20), [this, form] { fetch_files(form, 0); });
}

void SimWorker::fetch_files(const control::Form& form, int next) {
  if (interrupted_) return finish(WorkFailed{"interrupted"});
  if (next == form.files_size()) {
    has_state_ = true;
    if (form.step() > 0 || form.files_size() > 0) check_states(form.step(), "restored");
    return link_up(world_.now());
  }
  const auto bytes = world_.fetch(*this, form.files(next));
  if (!bytes) return finish(WorkFailed{bytes.error().message});
  if (sha256_hex(bytes.value()) != form.files(next).sha256()) throw Violation("a checkpoint's file has another hash");
  const auto state = state_in(bytes.value());
  if (!state) throw Violation("a checkpoint's file cannot be restored: " + state.error().message);
  states_[form.files(next).unit()] = state.value();
  pulse_.set_done(pulse_.done() + 1);
  later_in_work(world_.delay(), [this, form, next] { fetch_files(form, next + 1); });
}

void SimWorker::link_up(TimePoint since) {
  const auto linked = [&](const std::string& peer) { return peer.empty() || world_.are_linked(*this, peer, at_); };
  if (interrupted_) return finish(WorkFailed{"interrupted"});
  if (linked(previous_) && linked(next_)) {
    previous_life_ = world_.life_of(previous_);
    next_life_ = world_.life_of(next_);
    if (lie_ == Lie::kPackets) flood_neighbours();
    return finish(control::Formed());
  }
  if (world_.now() - since > kDialPatience) {
    return finish(WorkFailed{"a neighbour cannot be reached", false, !linked(previous_), !linked(next_)});
  }
  later_in_work(kPoll, [this, since] { link_up(since); });
}

void SimWorker::check_states(int64_t step, const char* what) const {
  const auto* expected = world_.expected(at_, step);
  if (expected == nullptr)
    throw Violation(fmt::format("{} {} step {} of an epoch that nobody began", peer_, what, step));
  for (const auto& [unit, state] : states_) {
    if (expected->at(unit) == state) continue;
    throw Violation(
        fmt::format("{} {} another state of {} than the committed steps give, at step {}", peer_, what, unit, step));
  }
}

bool SimWorker::link_works(bool previous) const {
  const auto& peer = previous ? previous_ : next_;
  return peer.empty() ||
         (!(previous ? from_previous_ : from_next_)->refused &&
          world_.life_of(peer) == (previous ? previous_life_ : next_life_) && world_.are_linked(*this, peer, at_));
}

bool SimWorker::gives_up(bool at_previous) {
  if (interrupted_) {
    finish(WorkFailed{"interrupted"});
    return true;
  }
  if (link_works(at_previous)) return false;
  finish(WorkFailed{"the neighbour is gone", false, at_previous, !at_previous});
  return true;
}

void SimWorker::begin(const ComputeStep& work) {
  const int64_t stages = world_.config().pipeline.stages;
  check_states(work.step.step(), "computes on");
  step_ = {stage_, stages, work.step.step(), token_payload(work.step.step())};
  for (auto* side : {&*from_previous_, &*from_next_}) side->refused |= !side->shelf.enter(at_.epoch, step_.step);
  if (lie_ == Lie::kHang) return;  // until a newer epoch interrupts it
  wait_forward();
}

void SimWorker::wait_forward() {
  const auto payload = from_previous_->take({at_.epoch, step_.step, 0, PacketKind::kForward});
  if (stage_ > 0 && !payload) {
    if (gives_up(true)) return;
    pulse_.set_waits(control::Heartbeat::PREVIOUS);
    return later_in_work(kPoll, [this] { wait_forward(); });
  }
  if (stage_ > 0) step_.received_forward = *payload;
  pulse_.set_waits(control::Heartbeat::NOTHING);
  later_in_work(world_.compute_time(), [this] {
    step_.sent_forward = forward_payload(states_, step_.received_forward, step_.step);
    pulse_.set_done(pulse_.done() + 1);
    send_payload(next_, true, step_.sent_forward);
    wait_backward();
  });
}

void SimWorker::wait_backward() {
  const auto payload = from_next_->take({at_.epoch, step_.step, 0, PacketKind::kBackward});
  if (!next_.empty() && !payload) {
    if (gives_up(false)) return;
    pulse_.set_waits(control::Heartbeat::NEXT);
    return later_in_work(kPoll, [this] { wait_backward(); });
  }
  step_.received_backward = next_.empty() ? loss_payload(step_.sent_forward) : *payload;
  pulse_.set_waits(control::Heartbeat::NOTHING);
  later_in_work(world_.compute_time(), [this] {
    step_.sent_backward = backward_payload(states_, step_.received_forward, step_.received_backward, step_.step);
    send_payload(previous_, false, step_.sent_backward);
    gradient_ = step_;
    gradient_at_ = at_;
    auto ready = step_.report();
    falsify(ready);
    finish(ready);
  });
}

void SimWorker::send_payload(const std::string& neighbour, bool forward, uint64_t payload) {
  if (neighbour.empty()) return;
  const uint64_t sent = lie_ == Lie::kOtherPayload ? mix(payload, 1) : payload;
  const auto kind = forward ? PacketKind::kForward : PacketKind::kBackward;
  world_.to_neighbour(*this, neighbour, at_, {at_.epoch, step_.step, 0, kind}, sent);
}

void SimWorker::flood_neighbours() {
  const uint64_t epoch = at_.epoch + (world_.dice().one_in(4) ? 1 : 0);  // one of a later epoch ends the link at once
  for (int64_t i = 0; i < kFloodPackets; ++i) {
    const PacketTag tag{epoch, static_cast<int64_t>(world_.dice().below(1000)), 0};
    for (const auto kind : {PacketKind::kForward, PacketKind::kBackward}) {
      const auto& to = kind == PacketKind::kForward ? next_ : previous_;
      if (!to.empty()) world_.to_neighbour(*this, to, at_, {tag.epoch, tag.step, 0, kind}, 1);
    }
  }
}

std::optional<uint64_t> SimWorker::Neighbour::take(const PacketTag& tag) {
  const auto packet = shelf.take(tag);
  if (!packet) return std::nullopt;
  return std::stoull(packet->payload());
}

void SimWorker::packet(const At& at, const PacketTag& tag, uint64_t payload) {
  if (!is_alive() || !from_previous_ || !(at_ == at)) return;
  auto& side = tag.kind == PacketKind::kForward ? *from_previous_ : *from_next_;
  if (side.refused) return;
  wire::Packet packet;
  packet.set_payload(std::to_string(payload));
  side.refused = !side.shelf.accept(tag, std::move(packet));
  // Two steps have a forward and a backward packet per microbatch and an end each; some of an evaluation come on top.
  const auto most = static_cast<size_t>(4 * world_.config().train.microbatches + 2 + 16);
  if (side.shelf.size() > most) throw Violation(fmt::format("{} holds {} packets", peer_, side.shelf.size()));
}

void SimWorker::begin(const ApplyCommit& work) {
  const auto& commit = work.commit;
  world_.check_commit(commit, peer_);
  if (!gradient_ || gradient_->step != commit.step() || gradient_at_ != At{commit.revision(), commit.epoch()}) {
    throw Violation(fmt::format("{} applies step {} without its gradients", peer_, commit.step()));
  }
  if (commit.apply()) states_ = gradient_->applied_to(states_, commit.grad_factor());
  gradient_.reset();
  later_in_work(milliseconds(10), [this] { finish(WorkOk{}); });
}

void SimWorker::begin(const ComputeLoss& work) {
  check_states(work.evaluate.step(), "evaluates");
  if (lie_ == Lie::kHang) return;
  later_in_work(world_.compute_time(), [this] {
    if (interrupted_) return finish(WorkFailed{"interrupted"});
    control::Evaluated evaluated;
    evaluated.set_loss_sum(6);
    finish(evaluated);
  });
}

// ---- checkpoints ----

void SimWorker::begin(const SaveState& work) {
  uploads_.clear();
  ++saves_;
  auto units = units_saved_by_stage(world_.config(), stage_);
  if (lie_ == Lie::kOthersFile) units = units_saved_by_stage(world_.config(), stage_ == 0 ? 1 : 0);
  for (const auto& unit : units) uploads_.push_back(make_upload(unit, work.save));
  upload_next();
  later_in_work(milliseconds(10), [this] { finish(WorkOk{}); });
}

SimWorker::Upload SimWorker::make_upload(const std::string& unit, const control::Save& save) const {
  const auto& config = world_.config();
  const auto found = states_.find(unit);
  const uint64_t state = found == states_.end() ? 0 : found->second;
  Upload upload{{}, unit_file(config, unit, save.step() + (lie_ == Lie::kOtherStepFile ? 1 : 0), state)};
  if (lie_ == Lie::kOtherBasisFile && world_.dice().one_in(2)) {
    upload.file.set_basis_version(999);
  } else if (lie_ == Lie::kOtherBasisFile) {
    upload.bytes = unit_file(config, unit, save.step(), state, 999);
  }
  if (lie_ == Lie::kGarbageFile) upload.bytes.assign(300, 'x');
  if (lie_ == Lie::kNotFiniteFile) upload.bytes.replace(upload.bytes.size() - 4, 4, "\xff\xff\xff\xff");
  upload.file.set_step(save.step());
  upload.file.set_generation(save.generation());
  upload.file.set_unit(unit);
  upload.file.set_bytes(lie_ == Lie::kHugeFile ? uint64_t{1} << 62 : upload.bytes.size());
  upload.file.set_sha256(sha256_hex(upload.bytes));
  return upload;
}

void SimWorker::retry_upload() {
  later(milliseconds(500), [this, save = saves_] {
    if (save == saves_) upload_next();
  });
}

void SimWorker::upload_next() {
  if (uploads_.empty() || lie_ == Lie::kHang) return;
  auto* coordinator = line_ ? world_.coordinator_at(line_) : nullptr;
  if (coordinator == nullptr) return retry_upload();
  const auto begun = coordinator->begin_upload(*line_, uploads_.front().file);
  if (!begun) return retry_upload();
  if (!begun.value()) {
    uploads_.pop_front();
    return retry_upload();
  }
  upload_part(*begun.value(), line_, 0);
}

// In two parts. The call ends with its line.
void SimWorker::upload_part(int64_t upload, const std::shared_ptr<Connection>& line, size_t done) {
  const auto wait = lie_ == Lie::kSlowUpload ? world_.dice().between(seconds(2), seconds(20)) : world_.delay();
  later(wait, [this, upload, line, done, save = saves_] {
    auto* coordinator = world_.coordinator_at(line);
    if (save != saves_ || uploads_.empty()) {  // a newer checkpoint has its own uploads
      if (coordinator != nullptr) coordinator->give_up_upload(upload);
      return;
    }
    if (coordinator == nullptr) return retry_upload();
    const auto& bytes = uploads_.front().bytes;
    const size_t part = lie_ == Lie::kCrumbs ? 0 : done == 0 ? bytes.size() / 2 : bytes.size() - done;
    pulse_.set_saved(pulse_.saved() + 1);
    if (!coordinator->continue_upload(upload, bytes.substr(done, part))) return retry_upload();
    if (done + part < bytes.size()) return upload_part(upload, line, done + part);
    if (!coordinator->end_upload(upload)) return retry_upload();
    if (!uploads_.empty()) uploads_.pop_front();
    upload_next();
  });
}

}  // namespace thinpipe::sim
