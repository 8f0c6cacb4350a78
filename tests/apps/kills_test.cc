// The main promise of the design: kill -9 any process of a run at any moment, delete its files, and the run ends as if
// nothing had happened, bit for bit. THINPIPE_KILL_SEED=N draws other moments, THINPIPE_KILLS=N kills
// more often.
#include <gtest/gtest.h>

#include "apps/running_program.h"
#include "base/rng.h"
#include "support/draw.h"

namespace thinpipe {
namespace {

using test::CommitWatch;
using test::Moment;
using test::Program;
using test::RunningProgram;
using test::Seconds;

// The delay slows steps on a fast machine too, so that the run is not over before the last kill. It also makes the
// warm-up deeper than the default; stages must agree on that after every restart.
const test::Arguments kSettings = {"train.steps=60", "link.delay=25ms"};
// What the messages lost must survive as well.
const test::Arguments kLossySettings = {"train.steps=60",     "link.delay=25ms", "model.mode=dense",
                                        "boundary.kind=topk", "boundary.keep=4", "boundary.error_feedback=true"};

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Kills the processes of one run in turn and measures how long it takes until steps are committed again.
class Killer {
 public:
  Killer(RunningProgram& program, std::filesystem::path run, uint64_t seed)
      : program_(program), run_(std::move(run)), watch_(run_), rng_(seed, "kills") {}

  // False: the run ended before all the kills, or hangs.
  bool kill_all(int kills) {
    for (int i = 0; i < kills; ++i) {
      if (!wait_for_the_moment() || !kill(targets_of(i))) return false;
    }
    return wait_for_commits(1);
  }

  void print_times() const {
    double sum = 0, most = 0;
    for (const double time : times_) {
      sum += time;
      most = std::max(most, time);
    }
    const double mean = sum / static_cast<double>(std::max<size_t>(1, times_.size()));
    fmt::print("from a replacement's start to the next commit: {:.2f} s on average, {:.2f} s at most, {} kills\n", mean,
               most, times_.size());
    fmt::print("at a kill a minute, {:.1f} % of the time would be left for steps\n", 100 * (1 - mean / 60));
  }

 private:
  struct Pending {
    std::string what;
    Moment replaced;
  };

  uint64_t draw(uint64_t bound) { return test::below(rng_, bound, draws_++); }

  test::Arguments targets_of(int number) {
    const int turn = number % 6;
    if (turn < 4) return {fmt::format("worker-{}", turn)};
    if (turn == 4) return {"serve"};
    return {"serve", fmt::format("worker-{}", draw(4))};
  }

  // Usually one to three commits later, in the middle of a step; every fourth time during the last recovery.
  bool wait_for_the_moment() {
    if (draw(4) != 0 && !wait_for_commits(1 + static_cast<int>(draw(3)))) return false;
    const auto start = test::now();
    const Seconds pause{static_cast<double>(draw(200)) / 1000};
    while (program_.running() && test::seconds_since(start) < pause.count()) {
      program_.look(pause - Seconds(test::seconds_since(start)), watch_.descriptor());
      note_commits();
    }
    return program_.running();
  }

  bool wait_for_commits(int count) {
    return program_.wait_until("steps are committed again", [&] {
      if (program_.running()) count -= note_commits();
      return count <= 0 || !program_.running();
    }) && program_.running();
  }

  int note_commits() {
    const int commits = watch_.take();
    if (commits == 0) return 0;
    for (const auto& one : pending_) {
      times_.push_back(test::seconds_since(one.replaced));
      fmt::print("  {}: {:.2f} s from its replacement to the next commit\n", one.what, times_.back());
    }
    pending_.clear();
    return commits;
  }

  bool kill(const test::Arguments& targets) {
    const auto before = program_.children();
    for (const auto& target : targets) {
      const auto found = before.find(target);
      if (found == before.end()) continue;  // its replacement has not started yet
      ::kill(found->second, SIGKILL);
      if (target == "serve") continue;
      // Removes the folder at once, even if the dying process or its replacement is writing there.
      std::error_code ignored;
      std::filesystem::rename(run_ / "workers" / target.substr(target.rfind('-') + 1),
                              run_.parent_path() / fmt::format("removed-{}", ++removed_), ignored);
    }
    const auto what = fmt::format("kill of {} after line {}", fmt::join(targets, " and "), test::metrics_lines(run_));
    const auto replaced = [&] {
      const auto here = program_.children();
      return std::all_of(targets.begin(), targets.end(), [&](const auto& target) {
        const auto old = before.find(target), found = here.find(target);
        return found != here.end() && (old == before.end() || found->second != old->second);
      });
    };
    if (!program_.wait_until("replacements have been started", [&] { return replaced() || !program_.running(); })) {
      return false;
    }
    note_commits();  // old ones
    pending_.push_back({what, test::now()});
    return program_.running();
  }

  RunningProgram& program_;
  const std::filesystem::path run_;
  int removed_ = 0;  // folders of workers
  CommitWatch watch_;
  const CounterRng rng_;
  uint64_t draws_ = 0;
  std::vector<Pending> pending_;
  std::vector<double> times_;
};

void expect_same_result_after(int kills, const test::Arguments& settings) {
  const Program program;
  test::write_small_run(program);
  const auto undisturbed = program.run(test::small_run(program / "undisturbed", settings));
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;

  const auto seed = from_environment("THINPIPE_KILL_SEED", 1);
  fmt::print("seed {} (THINPIPE_KILL_SEED)\n", seed);
  const auto run = program / "killed";
  RunningProgram killed(program, test::small_run(run, settings));
  ASSERT_TRUE(killed.wait_until("the first step is committed", [&] { return test::metrics_lines(run) > 0; }));
  Killer killer(killed, run, seed);
  EXPECT_TRUE(killer.kill_all(kills)) << "not all kills happened\n"
                                      << killed.out() << killed.err() << test::logs_of(run);
  killer.print_times();
  const auto outcome = killed.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  test::expect_same_result(run, test::result_of(program / "undisturbed"));
}

TEST(Kills, TwentyKills_DoNotChangeTheResult) {
  const auto kills = from_environment("THINPIPE_KILLS", 20);
  auto settings = kSettings;
  settings.front() = fmt::format("train.steps={}", std::max<uint64_t>(60, 3 * kills));
  expect_same_result_after(static_cast<int>(kills), settings);
}

TEST(Kills, SixKills_DoNotChangeTheResultOfALossyRunWithErrorFeedback) { expect_same_result_after(6, kLossySettings); }

}  // namespace
}  // namespace thinpipe
