#include "net/packet_shelf.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace thinpipe {
namespace {

// More than any config allows. Keeps most_held() from overflowing.
constexpr int64_t kMostMicrobatches = int64_t{1} << 32;

// Two steps, each with its forward and backward packets and its end, plus the evaluation packets.
size_t most_held(int64_t microbatches) {
  TP_CHECK(microbatches >= 0 && microbatches <= kMostMicrobatches, "{} microbatches in a step", microbatches);
  return 2 * static_cast<size_t>(2 * microbatches + 1) + PacketShelf::kEvaluationAhead;
}

// The first tag of a step in a map or set.
PacketTag first_of(uint64_t epoch, int64_t step) { return {epoch, step, 0, PacketKind::kForward}; }

}  // namespace

PacketShelf::PacketShelf(int64_t microbatches, uint64_t epoch) : most_(most_held(microbatches)), epoch_(epoch) {}

Status PacketShelf::enter(uint64_t epoch, int64_t step) {
  TP_CHECK(step >= 0 && (epoch > epoch_ || (epoch == epoch_ && (!step_ || step >= *step_))),
           "from epoch {}, step {} back to epoch {}, step {}", epoch_, step_.value_or(0), epoch, step);
  if (epoch != epoch_) {
    meter_.dropped_old += held_.size();
    held_.clear();
    epoch_ = epoch;
  }
  step_ = step;
  dropped_ = 0;
  while (!held_.empty() && held_.begin()->first.step < step) {
    held_.erase(held_.begin());
    ++meter_.dropped_old;
  }
  taken_.erase(taken_.begin(), taken_.lower_bound(first_of(epoch, step)));
  // Only packets that arrived before the epoch's step was known can be too far ahead.
  if (held_.empty() || held_.rbegin()->first.step - step <= 1) return {};
  return Error{fmt::format("a packet of epoch {}, step {} had come before step {}; at most the next step's may", epoch,
                           held_.rbegin()->first.step, step)};
}

Status PacketShelf::accept(const PacketTag& tag, wire::Packet packet) {
  if (tag.epoch < epoch_ || (tag.epoch == epoch_ && step_ && tag.step < *step_)) {
    return drop(tag, meter_.dropped_old);
  }
  if (tag.epoch > epoch_) {
    return Error{fmt::format("a packet of epoch {} in epoch {}, which has its own links", tag.epoch, epoch_)};
  }
  if (step_ && tag.step - *step_ > 1) {
    return Error{fmt::format("a packet of step {} in step {}; at most the next step's may come", tag.step, *step_)};
  }
  if (held_.contains(tag) || taken_.contains(tag)) {
    return drop(tag, meter_.dropped_repeated);
  }
  if (held_.size() >= most_) {
    return Error{
        fmt::format("a packet of step {} when {} are waiting here; two steps have no more", tag.step, held_.size())};
  }
  held_.emplace(tag, std::move(packet));
  return {};
}

Status PacketShelf::drop(const PacketTag& tag, uint64_t& meter) {
  ++meter;
  if (++dropped_ <= kMostDropped) return {};
  return Error{fmt::format("a packet of step {} after {} late or repeated ones", tag.step, kMostDropped)};
}

std::optional<wire::Packet> PacketShelf::take(const PacketTag& tag) {
  auto node = held_.extract(tag);
  if (node.empty()) return std::nullopt;
  taken_.insert(tag);
  return std::move(node.mapped());
}

bool PacketShelf::full_of_evaluation() const {
  const auto of_evaluation = [](const auto& one) { return one.first.kind == PacketKind::kEvalForward; };
  return std::count_if(held_.begin(), held_.end(), of_evaluation) >= static_cast<ptrdiff_t>(kEvaluationAhead);
}

}  // namespace thinpipe
