#include "net/packet_link.h"

#include <chrono>
#include <utility>

#include "base/line.h"

namespace thinpipe {
namespace {

constexpr auto kLeaveTime = std::chrono::milliseconds(500);

// "boundary 2", "boundary 2 (alice)"
std::string place_of(const PacketRules& rules) {
  if (rules.neighbour.empty()) return fmt::format("boundary {}", rules.boundary);
  return fmt::format("boundary {} ({})", rules.boundary, rules.neighbour);
}

}  // namespace

PacketLink::PacketLink(std::unique_ptr<Link> link, PacketRules rules, uint64_t epoch, const LinkShape& shape,
                       uint64_t seed)
    : link_(std::move(link)),
      rules_(std::move(rules)),
      most_outgoing_(static_cast<size_t>(rules_.microbatches) + 1),
      shelf_(rules_.microbatches, epoch),
      line_(shape, seed) {
  sender_ = std::thread([this] { run_sender(); });
  receiver_ = std::thread([this] { run_receiver(); });
}

PacketLink::~PacketLink() {
  close(fmt::format("boundary {}: the stage at the other end has left", rules_.boundary));
  {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLeaveTime, [&] { return ended_; })) link_->cancel();
  }
  sender_.join();
  receiver_.join();
}

// ---- the compute thread ----

void PacketLink::enter(uint64_t epoch, int64_t step) {
  std::unique_lock lock(mutex_);
  const auto entered = shelf_.enter(epoch, step);
  if (interrupt_ && epoch >= interrupt_->epoch) interrupt_.reset();
  changed_.notify_all();
  lock.unlock();
  if (!entered) fail(entered.error().message);
}

Status PacketLink::send(const PacketTag& tag, std::span<const std::byte> payload, int64_t basis_version) {
  TP_CHECK(tag_problem(tag, rules_).empty(), "sending a packet with {}", tag_problem(tag, rules_));
  auto frame = packet_frame(tag, payload, basis_version);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return interruption(tag.epoch) || failure_ || outbox_.size() < most_outgoing_; });
  if (auto interrupted = interruption(tag.epoch)) return *std::move(interrupted);
  if (failure_) return Error{*failure_};
  const auto due = line_.arrival(std::chrono::steady_clock::now(), frame.ByteSizeLong());
  outbox_.push_back({due, std::move(frame)});
  changed_.notify_all();
  return {};
}

Result<std::string> PacketLink::receive(const PacketTag& tag, int64_t basis_version) {
  std::unique_lock lock(mutex_);
  if (auto interrupted = interruption(tag.epoch)) return *std::move(interrupted);
  // A packet that cannot come would block until the run ends.
  TP_CHECK(tag_problem(tag, rules_).empty(), "waiting for a packet with {}", tag_problem(tag, rules_));
  const auto& step = shelf_.step();
  TP_CHECK(tag.epoch == shelf_.epoch() && (!step || tag.step == *step || tag.step - *step == 1),
           "waiting for {} in epoch {}, step {}", to_string(tag), shelf_.epoch(), step.value_or(0));
  TP_CHECK(!shelf_.was_taken(tag), "waiting for {} a second time", to_string(tag));
  changed_.wait(lock, [&] { return interruption(tag.epoch) || shelf_.holds(tag) || failure_; });
  if (auto interrupted = interruption(tag.epoch)) return *std::move(interrupted);
  auto packet = shelf_.take(tag);
  if (!packet) return Error{*failure_};
  changed_.notify_all();
  lock.unlock();

  if (packet->basis_version() != basis_version) {
    return refuse(Error{fmt::format("{} is of basis version {}; this stage is at version {}", to_string(tag),
                                    packet->basis_version(), basis_version)});
  }
  return std::move(*packet->mutable_payload());
}

// ---- any thread ----

void PacketLink::close(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = reason;
  owes_last_word_ = true;
  changed_.notify_all();
}

void PacketLink::fail(const std::string& reason) { close(fmt::format("{}: {}", place_of(rules_), reason)); }

void PacketLink::interrupt(uint64_t epoch, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (interrupt_ && epoch <= interrupt_->epoch) return;
  interrupt_ = Interrupt{epoch, reason};
  changed_.notify_all();
}

std::optional<Error> PacketLink::interruption(uint64_t epoch) const {
  if (!interrupt_ || epoch >= interrupt_->epoch) return std::nullopt;
  return Error{interrupt_->reason};
}

PacketMeter PacketLink::meter() const {
  const std::lock_guard lock(mutex_);
  return shelf_.meter();
}

Error PacketLink::refuse(const Error& why) {
  Error error{fmt::format("{}: refused a packet: {}", place_of(rules_), why.message)};
  close(error.message);
  return error;
}

bool PacketLink::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

// ---- the sender ----

void PacketLink::run_sender() {
  while (auto frame = next_outgoing()) {
    if (link_->write(std::move(*frame))) continue;
    // The receiver finds out why. It must not wait for room now: nobody would end that wait.
    const std::lock_guard lock(mutex_);
    write_failed_ = true;
    changed_.notify_all();
    break;
  }
  link_->end_writing();
  end_direction();
}

std::optional<wire::Frame> PacketLink::next_outgoing() {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return failure_ || read_ended_; };
  changed_.wait(lock, [&] { return over() || !outbox_.empty(); });
  if (!over()) changed_.wait_until(lock, outbox_.front().due, over);
  if (over() && !owes_last_word_) return std::nullopt;
  if (outbox_.empty()) {
    owes_last_word_ = false;
    return last_word_frame(*failure_);
  }
  auto frame = std::move(outbox_.front().frame);
  outbox_.pop_front();
  changed_.notify_all();
  return frame;
}

// ---- the receiver ----

// Reads until nothing more comes, even after a failure: the other end may need room to send its last word.
void PacketLink::run_receiver() {
  wire::Frame frame;
  for (wait_for_room(); link_->read(frame); wait_for_room()) take(std::move(frame));
  {
    const std::lock_guard lock(mutex_);
    read_ended_ = true;
    changed_.notify_all();
  }
  end_direction();
}

void PacketLink::wait_for_room() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || write_failed_ || !shelf_.full_of_evaluation(); });
}

void PacketLink::take(wire::Frame frame) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    if (frame.has_last_word()) {
      failure_ = one_line(frame.last_word());
      changed_.notify_all();
      return;
    }
  }
  const auto tag = packet_tag(frame, rules_);
  const auto accepted = tag ? accept(tag.value(), std::move(*frame.mutable_packet())) : Status(tag.error());
  if (!accepted) fail("refused " + accepted.error().message);
}

Status PacketLink::accept(const PacketTag& tag, wire::Packet packet) {
  const std::lock_guard lock(mutex_);
  TRY(shelf_.accept(tag, std::move(packet)));
  changed_.notify_all();
  return {};
}

// The last of the two threads finishes the link. If no end has given a reason, the link's own reason counts.
void PacketLink::end_direction() {
  {
    const std::lock_guard lock(mutex_);
    if (--directions_ > 0) return;
  }
  const auto said = link_->finish();
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = said;
  ended_ = true;
  changed_.notify_all();
}

}  // namespace thinpipe
