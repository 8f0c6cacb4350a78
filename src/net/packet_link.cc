#include "net/packet_link.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace thinpipe {
namespace {

// Above what any config allows; keeps most_held() from overflowing.
constexpr int64_t kMostMicrobatches = int64_t{1} << 32;

size_t most_held(const PacketRules& rules) {
  TP_CHECK(rules.microbatches >= 0 && rules.microbatches <= kMostMicrobatches && rules.eval_microbatches >= 0 &&
               rules.eval_microbatches <= kMostMicrobatches,
           "{} microbatches in a step and {} in an evaluation", rules.microbatches, rules.eval_microbatches);
  // Two steps, each with its forward and backward packets, its end, and an evaluation before it.
  return 2 * static_cast<size_t>(2 * rules.microbatches + 1 + rules.eval_microbatches);
}

// "boundary 2", "boundary 2 (alice)"
std::string place_of(const PacketRules& rules) {
  if (rules.neighbour.empty()) return fmt::format("boundary {}", rules.boundary);
  return fmt::format("boundary {} ({})", rules.boundary, rules.neighbour);
}

// The first tag of a step in a map or set.
PacketTag first_of(uint64_t epoch, int64_t step) { return {epoch, step, 0, PacketKind::kForward}; }

}  // namespace

PacketLink::PacketLink(std::unique_ptr<Link> link, PacketRules rules, uint64_t epoch)
    : link_(std::move(link)), rules_(std::move(rules)), most_held_(most_held(rules_)), epoch_(epoch) {
  receiver_ = std::thread([this] { receive_until_closed(); });
}

PacketLink::~PacketLink() {
  close(fmt::format("boundary {}: the stage at the other end has left", rules_.boundary));
  receiver_.join();
}

void PacketLink::enter(uint64_t epoch, int64_t step) {
  std::unique_lock lock(mutex_);
  TP_CHECK(step >= 0 && (epoch > epoch_ || (epoch == epoch_ && (!step_ || step >= *step_))),
           "from epoch {}, step {} back to epoch {}, step {}", epoch_, step_.value_or(0), epoch, step);
  if (epoch != epoch_) leave_epoch(epoch);
  step_ = step;
  while (!held_.empty() && held_.begin()->first.step < step) {
    held_.erase(held_.begin());
    ++meter_.dropped_old;
  }
  received_.erase(received_.begin(), received_.lower_bound(first_of(epoch, step)));
  if (interrupt_ && epoch >= interrupt_->epoch) interrupt_.reset();
  const auto ahead = step_too_far_ahead();
  has_room_.notify_all();
  lock.unlock();
  if (ahead) {
    fail(fmt::format("a packet of epoch {}, step {} had come before step {}; at most the next step's may", epoch,
                     *ahead, step));
  }
}

void PacketLink::leave_epoch(uint64_t epoch) {
  meter_.dropped_old += held_.size();
  held_ = std::exchange(held_next_, {});
  if (epoch - epoch_ > 1) {
    meter_.dropped_old += held_.size();
    held_.clear();
  }
  epoch_ = epoch;
}

// Only what was held before the epoch's step was known can be.
std::optional<int64_t> PacketLink::step_too_far_ahead() const {
  if (held_.empty()) return std::nullopt;
  const int64_t last = held_.rbegin()->first.step;
  if (last - *step_ > 1) return last;
  return std::nullopt;
}

Status PacketLink::send(const PacketTag& tag, std::vector<std::byte> payload, int64_t rows, int64_t cols,
                        int64_t basis_version) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  TP_CHECK(tag_problem(tag, rules_).empty(), "sending a packet with {}", tag_problem(tag, rules_));
  TP_CHECK(payload.size() <= rules_.max_payload_bytes, "sending {} with {} payload bytes, at most {}", to_string(tag),
           payload.size(), rules_.max_payload_bytes);
  TP_CHECK(rows >= 0 && rows <= kMost && cols >= 0 && cols <= kMost, "sending {} of {} x {}", to_string(tag), rows,
           cols);
  {
    const std::lock_guard lock(mutex_);
    if (auto interrupted = interruption(tag.epoch)) return *std::move(interrupted);
    if (failure_) return Error{*failure_};
  }
  const PacketHeader header{.run = rules_.run,
                            .tag = tag,
                            .boundary = rules_.boundary,
                            .boundary_kind = rules_.boundary_kind,
                            .pack = rules_.pack,
                            .rows = static_cast<uint32_t>(rows),
                            .cols = static_cast<uint32_t>(cols),
                            .basis_version = basis_version};
  const size_t payload_bytes = payload.size();
  auto sent = link_->send(encode_packet(header, std::move(payload)));
  if (sent.ok()) {
    const std::lock_guard lock(mutex_);
    meter_.payload_bytes_sent += payload_bytes;
  }
  return sent;
}

Result<std::vector<std::byte>> PacketLink::receive(const PacketTag& tag, int64_t basis_version) {
  std::unique_lock lock(mutex_);
  if (auto interrupted = interruption(tag.epoch)) return *std::move(interrupted);
  // What cannot come would be waited for until the run ends.
  TP_CHECK(tag_problem(tag, rules_).empty(), "waiting for a packet with {}", tag_problem(tag, rules_));
  TP_CHECK(tag.epoch == epoch_ && (!step_ || tag.step == *step_ || tag.step - *step_ == 1),
           "waiting for {} in epoch {}, step {}", to_string(tag), epoch_, step_.value_or(0));
  TP_CHECK(!received_.contains(tag), "waiting for {} a second time", to_string(tag));
  changed_.wait(lock, [&] { return interruption(tag.epoch) || held_.contains(tag) || failure_; });
  if (auto interrupted = interruption(tag.epoch)) return *std::move(interrupted);
  auto node = held_.extract(tag);
  if (node.empty()) return Error{*failure_};
  received_.insert(tag);
  has_room_.notify_all();
  lock.unlock();

  auto& [header, payload] = node.mapped();
  if (header.basis_version != basis_version) {
    return Error{fmt::format("{}: {} is of basis version {}; this stage is at version {}", place_of(rules_),
                             to_string(tag), header.basis_version, basis_version)};
  }
  return std::move(payload);
}

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
  return meter_;
}

bool PacketLink::wait_for_room() {
  std::unique_lock lock(mutex_);
  const auto full = [](const Held& held) {
    return std::count_if(held.begin(), held.end(), [](const auto& one) {
             return one.first.kind == PacketKind::kEvalForward;
           }) >= static_cast<ptrdiff_t>(kEvaluationAhead);
  };
  has_room_.wait(lock, [&] { return failure_ || !(full(held_) || full(held_next_)); });
  return !failure_;
}

void PacketLink::receive_until_closed() {
  while (wait_for_room()) {
    auto message = link_->receive();
    if (!message) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = message.error().message;
      changed_.notify_all();
      return;
    }
    auto packet = parse_packet(std::move(message.value()), rules_);
    const auto accepted = packet ? accept(std::move(packet.value())) : Status(packet.error());
    if (!accepted) return fail("refused " + accepted.error().message);
  }
}

Status PacketLink::accept(Packet packet) {
  const std::lock_guard lock(mutex_);
  const PacketTag tag = packet.header.tag;
  if (tag.epoch < epoch_ || (tag.epoch == epoch_ && step_ && tag.step < *step_)) {
    ++meter_.dropped_old;
    return {};
  }
  if (tag.epoch - epoch_ > 1) {
    return Error{fmt::format("a packet of epoch {} in epoch {}; at most the next epoch's may come", tag.epoch, epoch_)};
  }
  if (tag.epoch == epoch_ && step_ && tag.step - *step_ > 1) {
    return Error{fmt::format("a packet of step {} in step {}; at most the next step's may come", tag.step, *step_)};
  }
  Held& held = tag.epoch == epoch_ ? held_ : held_next_;
  if (held.contains(tag) || received_.contains(tag)) {
    ++meter_.dropped_repeated;
    return {};
  }
  if (held.size() >= most_held_) {
    return Error{
        fmt::format("a packet of epoch {}, step {} when {} of that epoch are waiting here; two steps have no more",
                    tag.epoch, tag.step, held.size())};
  }
  held.emplace(tag, std::move(packet));
  changed_.notify_all();
  return {};
}

void PacketLink::fail(const std::string& reason) { close(fmt::format("{}: {}", place_of(rules_), reason)); }

void PacketLink::close(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = reason;
    changed_.notify_all();
    has_room_.notify_all();
  }
  link_->close(reason);  // without the mutex: it may take a transport's time
}

}  // namespace thinpipe
