// Three hundred random mixtures of everything that can fail around a coordinator. What must hold at any moment is
// checked by the fake cluster as messages pass; and when the faults stop, the run ends as if there had been none.
#include <gtest/gtest.h>

#include <limits>

#include "base/rng.h"
#include "fake_cluster.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::FakeCluster;
using test::FakeWorker;
using test::small_rules;

class Chaos {
 public:
  explicit Chaos(uint64_t seed) : rng_(seed, "chaos"), cluster_(rules()) {
    for (int i = 0; i < 3; ++i) cluster_.add(fmt::format("w{}", i));
  }

  void run() {
    const auto events = 40 + below(300);
    for (uint64_t i = 0; i < events && !cluster_.finished(); ++i) something_happens();
    for (int i = 0; i < 200 && !cluster_.finished(); ++i) calm();
    ASSERT_TRUE(cluster_.finished()) << "the run hangs: " << cluster_.last_event();
    EXPECT_FALSE(cluster_.finished()->failed) << cluster_.finished()->reason;
    EXPECT_EQ(cluster_.store.rows.size(), 12u);
    EXPECT_EQ(cluster_.store.manifest_step, 12);
    EXPECT_TRUE(cluster_.store.final_loss);
    for (const int64_t step : {4, 8, 12}) EXPECT_TRUE(cluster_.store.evaluations.contains(step));
  }
  const FakeCluster& cluster() const { return cluster_; }

 private:
  static RunRules rules() {
    auto rules = small_rules();
    rules.stages = 3;
    rules.steps = 12;
    rules.eval_every = 4;
    rules.eval_windows = 1;
    rules.checkpoint_every = 3;
    rules.max_failures = 1000;
    rules.max_skipped = 1000;
    return rules;
  }
  uint64_t below(uint64_t bound) { return rng_.below(bound, draws_++); }
  FakeWorker& any() { return cluster_.worker(below(cluster_.worker_count())); }

  void something_happens() {
    auto& worker = any();
    switch (below(30)) {
      case 0:
        if (worker.alive && below(3) == 0) cluster_.crash(worker);
        break;
      case 1:
        if (worker.session) cluster_.disconnect(worker, below(4));
        break;
      case 2:
        if (worker.alive && !worker.session) cluster_.connect(worker);
        break;
      case 3:
        if (!worker.alive) cluster_.start_process(worker);
        break;
      case 4:
        if (below(4) == 0) restart_coordinator(worker);
        break;
      case 5:
        if (cluster_.worker_count() < 6) cluster_.add(fmt::format("w{}", cluster_.worker_count()));
        break;
      case 6:
        cluster_.pass_time(milliseconds(below(4000)), below(8) != 0);
        break;
      case 7:
        worker.forming_fails = below(2) == 0;
        worker.slow = below(2) == 0;
        break;
      case 8:
        if (worker.session && worker.computing) worker.say_trouble("a neighbour is gone");
        break;
      case 9:
        worker.loss_sum = below(4) == 0 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
        break;
      case 10:
        cut_off_in_doubt(worker);
        break;
      case 11:
        cluster_.deliver_upload();
        break;
      default:
        if (below(2) == 0) worker.finish_step();
        if (below(2) == 0 ? !cluster_.deliver_to(worker) : !cluster_.deliver_from(worker)) some_deliveries();
    }
  }

  void some_deliveries() {
    auto left = below(20);
    cluster_.pump_until([&] { return left-- == 0; });
  }

  // Between a commit's row and its arrival.
  void cut_off_in_doubt(FakeWorker& worker) {
    const auto committed = cluster_.core().committed();
    cluster_.pump_until([&] { return cluster_.core().committed() != committed; });
    if (worker.session) cluster_.disconnect(worker);
  }

  // Killed between two effects of whatever it was doing.
  void restart_coordinator(FakeWorker& worker) {
    if (worker.session && !worker.outbox.empty()) {
      auto effects = cluster_.core().message(*worker.session, worker.outbox.front(), cluster_.now);
      const auto most = below(effects.size() + 1);
      cluster_.apply(std::move(effects), most);
    }
    cluster_.restart_coordinator();
  }

  // No faults any more: who is dead is started again, who is cut off dials again, everybody computes.
  void calm() {
    for (size_t i = 0; i < cluster_.worker_count(); ++i) {
      auto& worker = cluster_.worker(i);
      worker.forming_fails = worker.slow = false;
      worker.loss_sum = 1;
      if (!worker.alive) cluster_.start_process(worker);
      if (!worker.session) cluster_.connect(worker);
      worker.finish_step();
    }
    cluster_.pump();
    cluster_.pass_time(seconds(1));
  }

  CounterRng rng_;
  uint64_t draws_ = 0;
  FakeCluster cluster_;
};

TEST(CoordinatorChaos, AnyMixtureOfFaultsKeepsTheHistoryWholeAndEndsWhenTheyStop) {
  int rollbacks = 0, doubts = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Chaos chaos(seed);
    chaos.run();
    rollbacks += static_cast<int>(chaos.cluster().events("rollback").size());
    doubts += static_cast<int>(chaos.cluster().events("in doubt").size());
    if (testing::Test::HasFailure()) break;
  }
  // The mixtures do reach the interesting places.
  EXPECT_GT(rollbacks, 50);
  EXPECT_GT(doubts, 50);
}

}  // namespace
}  // namespace thinpipe
