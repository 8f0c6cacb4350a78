// Ten thousand random schedules of the real coordinator's core and the real workers' cores: messages are dropped,
// repeated, reordered and late, processes on either side die, workers leave and are kicked. SimulatedRun checks the
// invariants as messages pass. When the faults stop, the run must end as if there had been none.
//
//   ./thinpipe test -R RandomSchedules                        all of them
//   THINPIPE_SEED=4711 ./thinpipe test -V -R RandomSchedules  one, printing its events
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "base/rng.h"
#include "simulated_run.h"
#include "support/draw.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::SimulatedRun;
using test::SimulatedWorker;
using test::small_rules;

constexpr uint64_t kSchedules = 10000;
constexpr size_t kMostWorkers = 7;
constexpr int kMostKicks = 2;

class Schedule {
 public:
  Schedule(uint64_t seed, bool prints) : rng_(seed, "schedule"), run_(rules()) {
    run_.keeps_history = false;
    run_.prints = prints;
    for (int i = 0; i < 3; ++i) add();
  }

  void play() {
    const auto events = 40 + below(300);
    for (uint64_t i = 0; i < events && !run_.finished(); ++i) something_happens();
    if (!run_.finished()) end_faults();
    for (int i = 0; i < 200 && !run_.finished(); ++i) calm();
    ASSERT_TRUE(run_.finished()) << "the run hangs: " << run_.last_event();
    EXPECT_FALSE(run_.finished()->failed) << run_.finished()->reason;
    EXPECT_EQ(run_.store.rows.size(), 12u);
    EXPECT_EQ(run_.store.manifest_step, 12);
    EXPECT_TRUE(run_.store.final_loss);
    for (const int64_t step : {4, 8, 12}) EXPECT_TRUE(run_.store.evaluations.contains(step));
  }
  int count(const std::string& kind) const {
    const auto found = run_.event_counts.find(kind);
    return found == run_.event_counts.end() ? 0 : found->second;
  }

 private:
  static RunRules rules() {
    auto rules = small_rules(3);
    rules.config.train.steps = 12;
    rules.config.train.eval_every = 4;
    rules.config.train.eval_sequences = 1;
    rules.config.checkpoint.every = 3;
    rules.config.cluster.max_failures = 1000;
    rules.config.cluster.max_skipped = 1000;
    return rules;
  }
  uint64_t below(uint64_t bound) { return test::below(rng_, bound, draws_++); }
  bool one_in(uint64_t count) { return below(count) == 0; }
  SimulatedWorker& any() { return run_.worker(below(run_.worker_count())); }
  void add() { run_.add(fmt::format("w{}", run_.worker_count())); }

  void something_happens() {
    auto& worker = any();
    switch (below(40)) {
      case 0:
        if (worker.alive && one_in(3)) run_.crash(worker);
        break;
      case 1:
        if (worker.session) run_.disconnect(worker, below(4));
        break;
      case 2:
        if (may_connect(worker)) run_.connect(worker);
        break;
      case 3:
        if (!worker.alive) run_.start_process(worker);
        break;
      case 4:
        if (one_in(4)) restart_coordinator(worker);
        break;
      case 5:
        if (run_.worker_count() < kMostWorkers) add();
        break;
      case 6:
        run_.pass_time(milliseconds(below(4000)), !one_in(8));
        break;
      case 7:
        worker.forming_fails = one_in(2);
        worker.slow = one_in(2);
        worker.stubborn = one_in(2);
        break;
      case 8:
        run_.finish_step(worker, false);
        break;
      case 9:
        worker.loss_sum = one_in(4) ? std::numeric_limits<double>::quiet_NaN() : 1.0;
        break;
      case 10:
        cut_off_in_doubt(worker);
        break;
      case 11:
        run_.deliver_upload();
        break;
      case 12:
        if (one_in(4) && worker.alive && worker.core) run_.leave(worker);
        break;
      case 13:
        if (one_in(4)) kick(worker);
        break;
      case 14:
        run_.tell(one_in(2) ? control::ControlRequest::PAUSE : control::ControlRequest::RESUME);
        break;
      case 15:
        disturb(worker.inbox, worker);
        break;
      case 16:
        disturb(worker.outbox, worker);
        break;
      case 17:
        late_message();
        break;
      default:
        if (one_in(2)) run_.finish_step(worker);
        if (one_in(2) ? !run_.deliver_to(worker) : !run_.deliver_from(worker)) some_deliveries();
    }
  }

  bool may_connect(const SimulatedWorker& worker) const {
    return worker.alive && !worker.session && !worker.core->ended();
  }

  void some_deliveries() {
    auto left = below(20);
    run_.pump_until([&] { return left-- == 0; });
  }

  // Between a commit's row and its arrival.
  void cut_off_in_doubt(SimulatedWorker& worker) {
    const auto committed = run_.core().committed();
    run_.pump_until([&] { return run_.core().committed() != committed; });
    if (worker.session) run_.disconnect(worker);
  }

  // Killed between two effects.
  void restart_coordinator(SimulatedWorker& worker) {
    if (worker.session && !worker.outbox.empty()) {
      auto effects = run_.core().message(*worker.session, worker.outbox.front(), run_.now);
      const auto most = below(effects.size() + 1);
      run_.apply(std::move(effects), most);
    }
    run_.restart_coordinator();
  }

  void kick(const SimulatedWorker& worker) {
    if (kicks_++ >= kMostKicks) return;
    run_.apply(run_.core().kick(worker.peer, run_.now));
    add();
  }

  // A message is dropped, repeated or reordered. Our streams never do that while they are up, so a stream that did is
  // broken at the end of the faults.
  template <class Queue>
  void disturb(Queue& queue, const SimulatedWorker& worker) {
    if (queue.empty()) return;
    const auto first = below(queue.size()), second = below(queue.size());
    switch (below(3)) {
      case 0:
        queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(first));
        break;
      case 1:
        queue.push_back(queue[first]);
        break;
      default:
        std::swap(queue[first], queue[second]);
    }
    disturbed_.insert(worker.peer);
  }

  // From a stream that broke long ago.
  void late_message() {
    if (run_.lost.empty()) return;
    const auto [worker, message] = run_.lost[below(run_.lost.size())];
    if (!worker->alive || worker->core->ended()) return;
    run_.give(*worker, message);
    disturbed_.insert(worker->peer);
  }

  void end_faults() {
    for (const auto& peer : disturbed_) {
      auto& worker = run_.worker(peer);
      if (worker.session) run_.disconnect(worker);
    }
    run_.tell(control::ControlRequest::RESUME);
  }

  // No more faults: dead and departed workers start again, disconnected ones dial again, all compute.
  void calm() {
    for (size_t i = 0; i < run_.worker_count(); ++i) {
      auto& worker = run_.worker(i);
      if (run_.store.revoked.contains(worker.peer)) continue;
      if (!worker.alive || (worker.core->ended() && !run_.finished())) run_.start_process(worker);
      worker.forming_fails = worker.slow = worker.stubborn = false;
      worker.loss_sum = 1;
      if (may_connect(worker)) run_.connect(worker);
      run_.finish_step(worker);
    }
    run_.pump();
    run_.pass_time(seconds(1));
  }

  CounterRng rng_;
  uint64_t draws_ = 0;
  int kicks_ = 0;
  std::set<std::string> disturbed_;
  SimulatedRun run_;
};

TEST(RandomSchedules, KeepTheHistoryConsistentAndFinishWhenTheFaultsStop) {
  const char* wanted = std::getenv("THINPIPE_SEED");
  const uint64_t first = wanted == nullptr ? 0 : std::strtoull(wanted, nullptr, 10);
  const uint64_t count = wanted == nullptr ? kSchedules : 1;
  int rollbacks = 0, doubts = 0, kicks = 0, leavers = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Schedule schedule(seed, wanted != nullptr);
    schedule.play();
    ASSERT_FALSE(testing::Test::HasFailure())
        << fmt::format("replay it with: THINPIPE_SEED={} ./thinpipe test -V -R RandomSchedules", seed);
    rollbacks += schedule.count("rollback");
    doubts += schedule.count("in doubt");
    kicks += schedule.count("kicked");
    leavers += schedule.count("left");
  }
  if (wanted != nullptr) return;
  // The schedules reach the interesting states.
  EXPECT_GT(rollbacks, 1000);
  EXPECT_GT(doubts, 1000);
  EXPECT_GT(kicks, 1000);
  EXPECT_GT(leavers, 1000);
}

}  // namespace
}  // namespace thinpipe
