#include "pipeline/schedule.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

namespace thinpipe {
namespace {

bool is_forward(ActionKind kind) {
  return kind == ActionKind::kReceiveForward || kind == ActionKind::kForward || kind == ActionKind::kSendForward;
}

bool is_send(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }

bool is_receive(ActionKind kind) { return kind == ActionKind::kReceiveForward || kind == ActionKind::kReceiveBackward; }

// Queues are numbered 2 link + direction (0 forward, 1 backward), where link i joins the stages i and i+1.
size_t queue_count(const Schedule& schedule) { return 2 * (schedule.stages.size() - 1); }

size_t queue_of(size_t stage, ActionKind kind) {
  switch (kind) {
    case ActionKind::kSendForward:
      return 2 * stage;
    case ActionKind::kReceiveForward:
      return 2 * (stage - 1);
    case ActionKind::kReceiveBackward:
      return 2 * stage + 1;
    case ActionKind::kSendBackward:
      return 2 * (stage - 1) + 1;
    default:
      TP_CHECK(false, "{} uses no queue", to_string(kind));
  }
}

// One microbatch in one direction on one stage, with the messages around it.
std::vector<Action> forward_actions(size_t stage, size_t stages, int64_t microbatch) {
  std::vector<Action> actions;
  if (stage > 0) actions.push_back({ActionKind::kReceiveForward, microbatch});
  actions.push_back({ActionKind::kForward, microbatch});
  if (stage + 1 < stages) actions.push_back({ActionKind::kSendForward, microbatch});
  return actions;
}

std::vector<Action> backward_actions(size_t stage, size_t stages, int64_t microbatch) {
  std::vector<Action> actions;
  if (stage + 1 < stages) actions.push_back({ActionKind::kReceiveBackward, microbatch});
  actions.push_back({ActionKind::kBackward, microbatch});
  if (stage > 0) actions.push_back({ActionKind::kSendBackward, microbatch});
  return actions;
}

// That a stage runs what it must, in order; returns the most microbatches it holds in flight.
Result<int64_t> check_stage(const Schedule& schedule, size_t stage) {
  const auto& actions = schedule.stages[stage].actions;
  int64_t forwards = 0;
  int64_t backwards = 0;
  int64_t in_flight = 0;
  for (size_t at = 0; at < actions.size();) {
    const bool forward = is_forward(actions[at].kind);
    if (!forward && !schedule.has_backward) {
      return Error{fmt::format("stage {}, action {}: {} {} in a schedule without backwards", stage, at,
                               to_string(actions[at].kind), actions[at].microbatch)};
    }
    if (forward ? forwards == schedule.microbatches : backwards == forwards) {
      return Error{fmt::format("stage {}, action {}: {} {} comes after {} forwards and {} backwards of {} microbatches",
                               stage, at, to_string(actions[at].kind), actions[at].microbatch, forwards, backwards,
                               schedule.microbatches)};
    }
    const auto expected = forward ? forward_actions(stage, schedule.stages.size(), forwards++)
                                  : backward_actions(stage, schedule.stages.size(), backwards++);
    for (const auto& right : expected) {
      if (at < actions.size() && actions[at] == right) {
        ++at;
        continue;
      }
      return Error{fmt::format("stage {}, action {}: {}, must be {} {}", stage, at,
                               at < actions.size()
                                   ? fmt::format("{} {}", to_string(actions[at].kind), actions[at].microbatch)
                                   : "nothing is left",
                               to_string(right.kind), right.microbatch)};
    }
    in_flight = std::max(in_flight, forwards - backwards);
  }
  if (forwards != schedule.microbatches || backwards != (schedule.has_backward ? schedule.microbatches : 0)) {
    return Error{fmt::format("stage {} ends after {} forwards and {} backwards of {} microbatches", stage, forwards,
                             backwards, schedule.microbatches)};
  }
  return schedule.has_backward ? in_flight : 0;
}

// The same for all stages.
Result<std::vector<int64_t>> check_stages(const Schedule& schedule) {
  if (schedule.stages.empty() || schedule.microbatches < 1) {
    return Error{fmt::format("a schedule of {} stages and {} microbatches; needs at least one of each",
                             schedule.stages.size(), schedule.microbatches)};
  }
  std::vector<int64_t> in_flight;
  for (size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    const auto peak = check_stage(schedule, stage);
    if (!peak) return peak.error();
    in_flight.push_back(peak.value());
  }
  return in_flight;
}

struct Position {
  size_t stage;
  size_t index;  // into its actions
};

// The actions of all stages, each checked, in one order in which they can run, if there is one. It decides deadlock for
// every other order too: stages are sequential, share nothing but first-in first-out queues and choose nothing by what
// they find in them, so running one never disables another, and all orders get equally far (Kahn's process networks).
Result<std::vector<Position>> runnable_order(const Schedule& schedule) {
  std::vector<Position> order;
  std::vector<size_t> next(schedule.stages.size(), 0);
  std::vector<int64_t> queued(queue_count(schedule), 0);
  size_t before = 0;
  do {
    before = order.size();
    for (size_t stage = 0; stage < schedule.stages.size(); ++stage) {
      const auto& actions = schedule.stages[stage].actions;
      for (; next[stage] < actions.size(); ++next[stage]) {
        const auto kind = actions[next[stage]].kind;
        if (is_receive(kind)) {
          auto& messages = queued[queue_of(stage, kind)];
          if (messages == 0) break;
          --messages;
        } else if (is_send(kind)) {
          ++queued[queue_of(stage, kind)];
        }
        order.push_back({stage, next[stage]});
      }
    }
  } while (order.size() > before);
  for (size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    if (next[stage] == schedule.stages[stage].actions.size()) continue;
    const auto& action = schedule.stages[stage].actions[next[stage]];
    return Error{fmt::format("deadlock: stage {} waits for ever at action {}, {} {}", stage, next[stage],
                             to_string(action.kind), action.microbatch)};
  }
  return order;
}

// How many messages a stage has taken from each of its two inbound queues.
struct Taken {
  int64_t forward = 0;
  int64_t backward = 0;
};

// What must have happened, on every stage, before the point at hand: a vector clock that counts only what we ask of it.
using History = std::vector<Taken>;

void merge(History& into, const History& other) {
  for (size_t stage = 0; stage < into.size(); ++stage) {
    into[stage].forward = std::max(into[stage].forward, other[stage].forward);
    into[stage].backward = std::max(into[stage].backward, other[stage].backward);
  }
}

// The exact peak of every queue. Take the moment after message k of a queue was sent. In any interleaving everything
// that happens before that send (program order on a stage, send before its receive) has happened; in the one that runs
// nothing else, nothing else has. So the fewest messages the receiver can have taken by then is the number of its
// receives that happen before the send, call it t_k: the sender as far ahead as its dependencies let it, the receiver
// lagging as far as they let it. The queue then holds k + 1 - t_k; it only grows by sends, so its peak is the maximum
// over k, and it is reached. No interleaving needs to be tried, and none exceeds it.
//
// The argument lets queues grow without limit. With capacities of at least the peaks no send ever finds its queue full,
// so the bounded system has exactly the same interleavings, and runnable_order's answer holds for it as well.
std::vector<int64_t> queue_peaks(const Schedule& schedule, const std::vector<Position>& order) {
  const size_t stages = schedule.stages.size();
  std::vector<History> history(stages, History(stages));
  std::vector<std::deque<History>> queues(queue_count(schedule));  // each message carries its sender's history
  std::vector<int64_t> peaks(queue_count(schedule), 0);
  for (const auto& [stage, index] : order) {
    const auto [kind, microbatch] = schedule.stages[stage].actions[index];
    auto& own = history[stage];
    if (is_receive(kind)) {
      auto& queue = queues[queue_of(stage, kind)];
      merge(own, queue.front());
      queue.pop_front();
      ++(is_forward(kind) ? own[stage].forward : own[stage].backward);
    } else if (is_send(kind)) {
      const auto queue = queue_of(stage, kind);
      const auto taken = is_forward(kind) ? own[stage + 1].forward : own[stage - 1].backward;
      peaks[queue] = std::max(peaks[queue], microbatch + 1 - taken);
      queues[queue].push_back(own);
    }
  }
  return peaks;
}

// prove() without what the plans announce.
Result<ScheduleProof> analyse(const Schedule& schedule) {
  const auto in_flight = check_stages(schedule);
  if (!in_flight) return in_flight.error();
  const auto order = runnable_order(schedule);
  if (!order) return order.error();
  ScheduleProof proof;
  proof.peak_in_flight = in_flight.value();
  const auto peaks = queue_peaks(schedule, order.value());
  for (size_t queue = 0; queue < peaks.size(); queue += 2) {
    proof.peak_forward_queue.push_back(peaks[queue]);
    proof.peak_backward_queue.push_back(peaks[queue + 1]);
  }
  return proof;
}

void append(StagePlan& plan, const std::vector<Action>& more) {
  plan.actions.insert(plan.actions.end(), more.begin(), more.end());
}

Schedule empty_schedule(int64_t stages, int64_t microbatches, bool has_backward) {
  TP_CHECK(stages >= 1 && microbatches >= 1, "a schedule of {} stages and {} microbatches", stages, microbatches);
  Schedule schedule;
  schedule.stages.resize(static_cast<size_t>(stages));
  schedule.microbatches = microbatches;
  schedule.has_backward = has_backward;
  return schedule;
}

// Announces the peaks, exactly. A schedule that cannot be proved is a fault of its maker.
Schedule with_proof(Schedule schedule) {
  const auto proof = analyse(schedule);
  TP_CHECK(proof.ok(), "{}", proof.error().message);
  const auto& [in_flight, forward, backward] = proof.value();
  for (size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    auto& plan = schedule.stages[stage];
    plan.max_in_flight = in_flight[stage];
    plan.forward_capacity = stage < forward.size() ? forward[stage] : 0;
    plan.backward_capacity = stage > 0 ? backward[stage - 1] : 0;
  }
  return schedule;
}

}  // namespace

std::string_view to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kReceiveForward:
      return "receive-forward";
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kSendForward:
      return "send-forward";
    case ActionKind::kReceiveBackward:
      return "receive-backward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kSendBackward:
      return "send-backward";
  }
  TP_CHECK(false, "no action {}", static_cast<int>(kind));
}

Schedule make_gpipe(int64_t stages, int64_t microbatches) {
  // 1f1b whose warm-up is the whole step.
  TP_CHECK(stages >= 1, "a schedule of {} stages", stages);
  return make_1f1b(stages, microbatches, std::vector<int64_t>(static_cast<size_t>(stages), microbatches));
}

Schedule make_1f1b(int64_t stages, int64_t microbatches, const std::vector<int64_t>& warmup) {
  auto schedule = empty_schedule(stages, microbatches, true);
  TP_CHECK(warmup.size() == schedule.stages.size(), "{} warm-up depths for {} stages", warmup.size(), stages);
  const size_t count = schedule.stages.size();
  for (size_t stage = 0; stage < count; ++stage) {
    TP_CHECK(warmup[stage] >= 0, "the warm-up of stage {} is {}", stage, warmup[stage]);
    const int64_t ahead = std::min(warmup[stage], microbatches);
    auto& plan = schedule.stages[stage];
    for (int64_t m = 0; m < ahead; ++m) append(plan, forward_actions(stage, count, m));
    for (int64_t m = 0; m < microbatches; ++m) {
      if (m + ahead < microbatches) append(plan, forward_actions(stage, count, m + ahead));
      append(plan, backward_actions(stage, count, m));
    }
  }
  return with_proof(std::move(schedule));
}

Schedule make_forward_only(int64_t stages, int64_t microbatches) {
  auto schedule = empty_schedule(stages, microbatches, false);
  const size_t count = schedule.stages.size();
  for (size_t stage = 0; stage < count; ++stage) {
    for (int64_t m = 0; m < microbatches; ++m) append(schedule.stages[stage], forward_actions(stage, count, m));
  }
  return with_proof(std::move(schedule));
}

std::vector<int64_t> covering_warmup(int64_t stages, int64_t microbatches, const PipelineTimes& times,
                                     int64_t memory_cap) {
  const double compute_s = times.forward_s + times.backward_s;
  const double hop_s = times.delay_s + times.transfer_s;
  TP_CHECK(stages >= 1 && microbatches >= 1 && memory_cap >= 0, "warm-up for {} stages, {} microbatches, cap {}",
           stages, microbatches, memory_cap);
  TP_CHECK(compute_s > 0 && hop_s >= 0, "warm-up for {} s of compute and {} s of link", compute_s, hop_s);
  std::vector<int64_t> warmup;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t hops = stages - 1 - stage;
    // A quotient that is whole but for rounding must not cost a microbatch of memory.
    constexpr double kSlack = 1 - 1e-12;
    const double cover = std::ceil(2 * static_cast<double>(hops) * hop_s / compute_s * kSlack);
    auto depth = static_cast<int64_t>(std::min(static_cast<double>(hops) + cover, static_cast<double>(microbatches)));
    // A stage in its steady state runs one forward more than its warm-up before a backward gives memory back.
    if (memory_cap > 0 && memory_cap < microbatches) depth = std::min(depth, memory_cap - 1);
    warmup.push_back(depth);
  }
  return warmup;
}

Result<ScheduleProof> prove(const Schedule& schedule) {
  auto proof = analyse(schedule);
  if (!proof) return proof;
  const auto& [in_flight, forward, backward] = proof.value();
  for (size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    const auto& plan = schedule.stages[stage];
    if (plan.max_in_flight != in_flight[stage]) {
      return Error{fmt::format("stage {} announces {} microbatches in flight, holds {}", stage, plan.max_in_flight,
                               in_flight[stage])};
    }
    if (stage + 1 < schedule.stages.size() && plan.forward_capacity < forward[stage]) {
      return Error{fmt::format("the queue from stage {} to {} has room for {} messages, needs {}", stage, stage + 1,
                               plan.forward_capacity, forward[stage])};
    }
    if (stage > 0 && plan.backward_capacity < backward[stage - 1]) {
      return Error{fmt::format("the queue from stage {} to {} has room for {} messages, needs {}", stage, stage - 1,
                               plan.backward_capacity, backward[stage - 1])};
    }
  }
  return proof;
}

double schedule_bound_s(const Schedule& schedule, const ScheduleTimes& times) {
  const auto checked = check_stages(schedule);
  TP_CHECK(checked.ok(), "{}", checked.error().message);
  const size_t stages = schedule.stages.size();
  TP_CHECK(times.forward_s.size() == stages && times.forward.size() == stages - 1,
           "forward times of {} stages and {} links for {} stages", times.forward_s.size(), times.forward.size(),
           stages);
  TP_CHECK(!schedule.has_backward || (times.backward_s.size() == stages && times.backward.size() == stages - 1),
           "backward times of {} stages and {} links for {} stages", times.backward_s.size(), times.backward.size(),
           stages);
  const auto order = runnable_order(schedule);
  TP_CHECK(order.ok(), "{}", order.error().message);
  std::vector<double> now(stages, 0);
  std::vector<double> link_free(queue_count(schedule), 0);
  std::vector<std::deque<double>> arrivals(queue_count(schedule));
  for (const auto& [stage, index] : order.value()) {
    const auto kind = schedule.stages[stage].actions[index].kind;
    if (is_send(kind)) {
      const auto queue = queue_of(stage, kind);
      const auto& link = is_forward(kind) ? times.forward[stage] : times.backward[stage - 1];
      link_free[queue] = std::max(link_free[queue], now[stage]) + link.transfer_s;
      arrivals[queue].push_back(link_free[queue] + link.delay_s);
    } else if (is_receive(kind)) {
      auto& queue = arrivals[queue_of(stage, kind)];
      now[stage] = std::max(now[stage], queue.front());
      queue.pop_front();
    } else {
      now[stage] += is_forward(kind) ? times.forward_s[stage] : times.backward_s[stage];
    }
  }
  return *std::max_element(now.begin(), now.end());
}

}  // namespace thinpipe
