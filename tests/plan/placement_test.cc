// Compares placements with a naive twin that tries everything, and checks the sentences that explain them.
#include "plan/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "config/config_file.h"
#include "plan/memory_plan.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 4096;
constexpr uint64_t kPlenty = uint64_t{1} << 40;

RunConfig with(std::vector<std::string> settings) {
  settings.emplace_back("pipeline.cuts=auto");
  return parse_config("", "x.toml", settings);
}

Machine machine(const std::string& peer, double block_s, double ends_s = 0, uint64_t memory_bytes = kPlenty) {
  return {peer, block_s, ends_s, memory_bytes};
}

std::vector<int64_t> cuts_of(const RunConfig& config, const std::vector<Machine>& machines) {
  const auto placement = place(config, kVocab, machines);
  EXPECT_TRUE(placement.ok()) << placement.error().message;
  return placement.ok() ? placement.value().cuts : std::vector<int64_t>{};
}

std::string refusal(const RunConfig& config, const std::vector<Machine>& machines) {
  const auto placement = place(config, kVocab, machines);
  EXPECT_FALSE(placement.ok());
  return placement.ok() ? "" : placement.error().message;
}

// The naive twin: every order of the machines with every division of the blocks.
class Everything {
 public:
  Everything(const RunConfig& config, const std::vector<Machine>& machines) : config_(config), machines_(machines) {
    const auto& subspace = config.model.subspace;
    std::vector<int64_t> groups = subspace.anchor_groups;
    if (!config.model.is_subspace() || subspace.anchors != Anchors::kStage) groups.assign(blocks(), 1);
    int64_t edge = 0;
    for (const int64_t count : groups) may_cut_at_.insert(edge += count);
  }

  double best() {
    std::vector<size_t> order(machines_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    double best = kNever;
    do {
      best = std::min(best, best_from(order, 0, 0));
    } while (std::next_permutation(order.begin(), order.end()));
    return best;
  }

  double slowest(const Placement& placement) {
    double worst = 0;
    int64_t first = 0;
    for (size_t stage = 0; stage < placement.cuts.size(); ++stage) {
      const auto at = std::find_if(machines_.begin(), machines_.end(),
                                   [&](const Machine& machine) { return machine.peer == placement.peers[stage]; });
      worst = std::max(worst, time(*at, static_cast<int64_t>(stage), first, first + placement.cuts[stage]));
      first += placement.cuts[stage];
    }
    return worst;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  int64_t blocks() const { return config_.model.blocks; }

  double best_from(const std::vector<size_t>& order, int64_t stage, int64_t first) {
    const auto& on = machines_[order[static_cast<size_t>(stage)]];
    if (stage + 1 == config_.pipeline.stages) return time(on, stage, first, blocks());
    double best = kNever;
    for (int64_t last = first + 1; last < blocks(); ++last) {
      if (config_.model.is_subspace() && last > config_.model.first_dense_block()) break;
      if (!may_cut_at_.contains(last)) continue;
      best = std::min(best, std::max(time(on, stage, first, last), best_from(order, stage + 1, last)));
    }
    return best;
  }

  double time(const Machine& on, int64_t stage, int64_t first, int64_t last) {
    const auto [need, is_new] = needs_.try_emplace({stage, first, last}, 0);
    if (is_new) need->second = memory_plan(config_, kVocab, stage, {first, last, config_.model.blocks}).total();
    if (static_cast<double>(need->second) > 0.9 * static_cast<double>(on.memory_bytes)) return kNever;
    return static_cast<double>(last - first) * on.block_s + (last == blocks() ? on.ends_s : 0);
  }

  const RunConfig& config_;
  const std::vector<Machine>& machines_;
  std::set<int64_t> may_cut_at_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, uint64_t> needs_;
};

struct Tally {
  int possible = 0, impossible = 0;
  int refused = 0;  // although possible
  int slower = 0;   // than the best
};

// Compares place() with the naive twin on random machines and models.
Tally compare_with_everything(int rounds, bool tight_memory, bool anchor_groups) {
  std::mt19937 random(5);
  const auto whole = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  Tally tally;
  for (int round = 0; round < rounds; ++round) {
    const int stages = whole(1, 4), blocks = whole(stages + 1, 8);
    std::vector<std::string> settings{fmt::format("model.blocks={}", blocks), fmt::format("pipeline.stages={}", stages),
                                      "train.microbatch=16"};
    if (anchor_groups) {
      std::vector<int64_t> groups;  // validate() refuses cuts inside a group
      for (const int64_t count : blocks_per_stage(with(settings))) {
        const int64_t first = whole(1, static_cast<int>(count));
        groups.push_back(first);
        if (count > first) groups.push_back(count - first);
      }
      settings.push_back("subspace.anchors=stage");
      settings.push_back(fmt::format("subspace.anchor_groups=[{}]", fmt::join(groups, ",")));
    } else if (whole(0, 1) == 0) {
      settings.emplace_back("model.mode=dense");
    }
    const auto config = with(settings);
    std::vector<Machine> machines;
    for (int i = 0, count = std::min(5, stages + whole(0, 2)); i < count; ++i) {
      const auto memory = tight_memory ? static_cast<uint64_t>(whole(500, 1500)) << 20 : kPlenty;
      machines.push_back(machine(fmt::format("m{}", i), whole(1, 9) * 0.1, whole(1, 6) * 0.1, memory));
    }
    Everything everything(config, machines);
    const double best = everything.best();
    const auto placement = place(config, kVocab, machines);
    if (best > 1e9) {
      EXPECT_FALSE(placement.ok());
      ++tally.impossible;
      continue;
    }
    ++tally.possible;
    if (!placement) {
      ++tally.refused;
      continue;
    }
    const double ratio = everything.slowest(placement.value()) / best;
    EXPECT_GT(ratio, 1 - 1e-9) << "better than the best";
    EXPECT_LT(ratio, 100) << "a stage does not fit: " << placement.value().why;
    if (ratio > 1 + 1e-9) ++tally.slower;
    auto placed = config;
    placed.pipeline.cuts = placement.value().cuts;
    placed.pipeline.auto_cuts = false;
    EXPECT_NO_THROW(validate(placed));
  }
  return tally;
}

TEST(Place, WithPlentyOfMemoryAndFreeCuts_IsOptimal) {
  const auto tally = compare_with_everything(60, false, false);
  EXPECT_EQ(tally.possible, 60);
  EXPECT_EQ(tally.refused + tally.slower, 0);
}

// Measured over 3000 random cases each. Little memory: of 1793 possible placements 12 were refused, and 32 were slower
// than the best, by a factor of 1.6 on average and 3.7 at most. Anchor groups: 312 of 3000 were slower, by 1.3 on
// average and 2.5 at most.
TEST(Place, WithLittleMemoryOrAnchorGroups_IsRarelyWorseThanTheBest) {
  const auto memory = compare_with_everything(60, true, false), groups = compare_with_everything(60, false, true);
  EXPECT_GT(memory.possible, 10);
  EXPECT_GT(memory.impossible, 10);
  EXPECT_LE(memory.refused + memory.slower, memory.possible / 10);
  EXPECT_EQ(groups.refused, 0);
  EXPECT_LE(groups.slower, groups.possible / 5);
}

TEST(Place, WithoutSpeeds_DividesEvenlyInOrderOfArrival) {
  const auto config = with({"model.blocks=9", "pipeline.stages=4", "model.mode=dense"});
  const auto placement = place(config, kVocab, {{.peer = "a"}, {.peer = "b"}, {.peer = "c"}, {.peer = "d"}});
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement.value().cuts, (std::vector<int64_t>{3, 2, 2, 2}));
  EXPECT_EQ(placement.value().peers, (std::vector<std::string>{"a", "b", "c", "d"}));
  EXPECT_EQ(placement.value().why,
            "3 + 2 + 2 + 2 blocks on a, b, c, d: no speeds are known, so all machines count as equal");
}

TEST(Place, GivesTheFasterMachineMoreBlocksAndCountsTheHead) {
  const auto config = with({"model.blocks=6", "pipeline.stages=2", "model.mode=dense"});
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1), machine("b", 0.2)}), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1, 0.2), machine("b", 0.1, 0.2)}), (std::vector<int64_t>{4, 2}));
}

TEST(Place, KeepsTheOtherStagesEven) {
  // The last stage, all head, sets the pace, no matter what the other two get.
  const auto config = with({"model.blocks=5", "pipeline.stages=3", "model.mode=dense"});
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1, 0.3), machine("b", 0.1, 0.3), machine("c", 0.1, 0.3)}),
            (std::vector<int64_t>{2, 2, 1}));
}

TEST(Place, WithMoreMachinesThanStages_LeavesOutTheSlowest) {
  const auto config = with({"model.blocks=4", "pipeline.stages=2", "model.mode=dense"});
  const auto placement = place(config, kVocab, {machine("slow", 1), machine("b", 0.1), machine("c", 0.1)});
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement.value().peers, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(placement.value().why,
            "2 + 2 blocks on b, c: the slowest is stage 0 on b with 0.2 s per microbatch; spare: slow");
}

TEST(Place, WithAnUnknownSpeed_UsesTheMeanOfTheOthers) {
  const auto config = with({"model.blocks=6", "pipeline.stages=3", "model.mode=dense"});
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1), machine("b", 0), machine("c", 0.1)}), (std::vector<int64_t>{2, 2, 2}));
}

TEST(Place, ToleratesImpossibleTimes) {
  const auto config = with({"model.blocks=6", "pipeline.stages=3", "model.mode=dense"});
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(cuts_of(config, {machine("a", infinite, nan), machine("b", nan, -1), machine("c", -3, infinite)}),
            (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(cuts_of(config, {machine("a", 1e300), machine("b", 1e-300), machine("c", 1e300)}),
            (std::vector<int64_t>{1, 4, 1}));
}

TEST(Place, KeepsTheTailInTheLastStage) {
  const auto config = with({"model.blocks=6", "pipeline.stages=2", "subspace.full_rank_tail=3"});
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1, 5), machine("b", 0.1, 5)}), (std::vector<int64_t>{3, 3}));
}

TEST(Place, NeverSplitsAnAnchorGroup) {
  const auto config =
      with({"model.blocks=8", "pipeline.stages=2", "subspace.anchors=stage", "subspace.anchor_groups=[1,3,4]"});
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1, 0.2), machine("b", 0.1, 0.2)}), (std::vector<int64_t>{4, 4}));
  const auto free = with({"model.blocks=8", "pipeline.stages=2"});
  EXPECT_EQ(cuts_of(free, {machine("a", 0.1, 0.2), machine("b", 0.1, 0.2)}), (std::vector<int64_t>{5, 3}));
}

TEST(Place, WithTooLittleMemory_NamesTheSmallestMachineAndWhatWouldBeEnough) {
  const auto config =
      with({"model.blocks=4", "pipeline.stages=2", "model.mode=dense", "model.d=1024", "model.heads=8"});
  const auto said = refusal(config, {{.peer = "unknown"}, machine("phone", 0.1, 0, 300 << 20)});
  const std::string before = "cannot fit 2 stages into the memory of these 2 machines: phone has the least, 300MiB; ";
  ASSERT_TRUE(said.starts_with(before)) << said;
  EXPECT_TRUE(
      said.ends_with(" MiB on each would be enough; add larger machines, or lower train.microbatch or train.seq_len"))
      << said;
  const auto mib = std::stoull(said.substr(before.size()));
  const auto two = [](uint64_t each) {
    return std::vector<Machine>{machine("a", 0.1, 0, each << 20), machine("b", 0.1, 0, each << 20)};
  };
  EXPECT_TRUE(place(config, kVocab, two(mib)).ok());
  EXPECT_FALSE(place(config, kVocab, two(mib - 1)).ok());
}

TEST(Place, WithTooFewMachines_SaysWhatToChange) {
  EXPECT_EQ(
      refusal(with({"pipeline.stages=3"}), {{.peer = "a"}, {.peer = "b"}}),
      "pipeline.stages = 3 needs as many machines, but only 2 joined; wait for 1 more, or set pipeline.stages = 2");
}

TEST(Place, WithManyMachines_TakesTheFastest) {
  const auto config = with({"model.blocks=200", "pipeline.stages=16", "model.d=64", "model.heads=2"});
  std::vector<Machine> machines;
  for (int i = 0; i < 100; ++i) machines.push_back(machine(fmt::format("m{}", i), 0.1 + 0.01 * ((i * 7) % 100), 0.3));
  const auto placement = place(config, kVocab, machines);
  ASSERT_TRUE(placement.ok()) << placement.error().message;
  for (const auto& peer : placement.value().peers) EXPECT_LT((std::stoi(peer.substr(1)) * 7) % 100, 16) << peer;
}

TEST(ChooseSeat, TakesTheLowestFreeStage) {
  const auto choice = choose_seat(with({}), kVocab, {{3}, {2}}, 0);
  EXPECT_EQ(choice.seat, Seat{2});
  EXPECT_EQ(choice.why, "stage 2: nobody has it");
}

TEST(ChooseSeat, WaitsIfEveryStageIsTaken) {
  const auto choice = choose_seat(with({}), kVocab, {}, kPlenty);
  EXPECT_EQ(choice.seat, std::nullopt);
  EXPECT_EQ(choice.why, "waits: every stage has a worker");
}

TEST(ChooseSeat, SkipsStagesThatDoNotFit) {
  const auto config = with({"train.microbatch=32"});
  const std::vector<Seat> seats{{0}, {3}};
  // The last stage holds one microbatch in flight where the first may hold four.
  const uint64_t memory = memory_plan(config, kVocab, 3).total() * 10 / 9 + 1000;
  ASSERT_LT(memory, memory_plan(config, kVocab, 0).total());
  const auto choice = choose_seat(config, kVocab, seats, memory);
  EXPECT_EQ(choice.seat, Seat{3});
  EXPECT_EQ(choice.why, "stage 3: nobody has it, and stage 0 needs more memory than this machine has");
  const auto waits = choose_seat(config, kVocab, seats, memory - 10000);
  EXPECT_EQ(waits.seat, std::nullopt);
  EXPECT_TRUE(waits.why.starts_with("waits: stage 0 is free but needs ")) << waits.why;
}

}  // namespace
}  // namespace thinpipe
