// Placements against a search that tries everything, and what is said about them.
#include "plan/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

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

// The slowest stage's time of these cuts on these machines; infinite when a stage does not fit.
double slowest(const RunConfig& config, const std::vector<int64_t>& cuts, const std::vector<Machine>& on) {
  double worst = 0;
  int64_t first = 0;
  for (size_t stage = 0; stage < cuts.size(); ++stage) {
    const int64_t last = first + cuts[stage];
    const bool is_last = stage + 1 == cuts.size();
    const auto need = memory_plan(config, kVocab, static_cast<int64_t>(stage), {first, last}).total();
    if (static_cast<double>(need) > 0.9 * static_cast<double>(on[stage].memory_bytes)) {
      return std::numeric_limits<double>::infinity();
    }
    worst = std::max(worst, static_cast<double>(cuts[stage]) * on[stage].block_s + (is_last ? on[stage].ends_s : 0));
    first = last;
  }
  return worst;
}

// Every order of the machines with every division of the blocks.
double best_by_trying(const RunConfig& config, const std::vector<Machine>& machines) {
  const auto stages = static_cast<size_t>(config.pipeline.stages);
  std::vector<size_t> order(machines.size());
  std::iota(order.begin(), order.end(), size_t{0});
  double best = std::numeric_limits<double>::infinity();
  do {
    std::vector<Machine> on;
    for (size_t i = 0; i < stages; ++i) on.push_back(machines[order[i]]);
    std::vector<int64_t> cuts(stages, 1);
    const auto divide = [&](auto& self, size_t stage, int64_t left) -> void {
      if (stage + 1 == stages) {
        cuts[stage] = left;
        if (!config.model.is_subspace() || left >= config.model.subspace.full_rank_tail) {
          best = std::min(best, slowest(config, cuts, on));
        }
        return;
      }
      for (int64_t count = 1; count <= left - static_cast<int64_t>(stages - 1 - stage); ++count) {
        cuts[stage] = count;
        self(self, stage + 1, left - count);
      }
    };
    divide(divide, 0, config.model.blocks);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(Place, IsAsFastAsTheBestOfAllPlacements) {
  std::mt19937 random(5);
  const auto whole = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  int refused = 0;
  for (int round = 0; round < 60; ++round) {
    const int stages = whole(1, 3), blocks = whole(stages + 1, 7);
    auto config = with({"model.blocks=" + std::to_string(blocks), "pipeline.stages=" + std::to_string(stages),
                        "train.microbatch=16", whole(0, 1) == 0 ? "model.mode=dense" : "model.mode=subspace"});
    std::vector<Machine> machines;
    for (int i = 0, count = stages + whole(0, 2); i < count; ++i) {
      const auto memory = static_cast<uint64_t>(whole(500, 1500)) << 20;
      machines.push_back(machine("m" + std::to_string(i), whole(1, 9) * 0.1, whole(0, 5) * 0.1 + 0.1, memory));
    }
    const double best = best_by_trying(config, machines);
    const auto placement = place(config, kVocab, machines);
    ASSERT_EQ(placement.ok(), best < 1e9) << best;
    if (!placement) {
      ++refused;
      continue;
    }
    std::vector<Machine> on;
    for (const auto& peer : placement.value().peers) {
      on.push_back(*std::find_if(machines.begin(), machines.end(), [&](const auto& m) { return m.peer == peer; }));
    }
    EXPECT_NEAR(slowest(config, placement.value().cuts, on), best, 1e-9) << placement.value().why;
    EXPECT_NO_THROW(validate(placed(config, placement.value())));
  }
  EXPECT_GT(refused, 0);  // both answers were seen
  EXPECT_LT(refused, 60);
}

TEST(Place, DividesEvenlyInOrderOfArrivalWhenNoSpeedIsKnown) {
  const auto config = with({"model.blocks=9", "pipeline.stages=4", "model.mode=dense"});
  const auto placement = place(config, kVocab, {{.peer = "a"}, {.peer = "b"}, {.peer = "c"}, {.peer = "d"}});
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement.value().cuts, (std::vector<int64_t>{3, 2, 2, 2}));
  EXPECT_EQ(placement.value().peers, (std::vector<std::string>{"a", "b", "c", "d"}));
  EXPECT_EQ(placement.value().why, "3 + 2 + 2 + 2 blocks on a, b, c, d: no speed is known, so all count as equal");
}

TEST(Place, GivesTheFasterMachineMoreAndCountsTheHead) {
  const auto config = with({"model.blocks=6", "pipeline.stages=2", "model.mode=dense"});
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1), machine("b", 0.2)}), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1, 0.2), machine("b", 0.1, 0.2)}), (std::vector<int64_t>{4, 2}));
}

TEST(Place, KeepsTheOtherStagesAsEqualAsCanBe) {
  // The last stage, all head, sets the pace whatever the other two get.
  const auto config = with({"model.blocks=5", "pipeline.stages=3", "model.mode=dense"});
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1, 0.3), machine("b", 0.1, 0.3), machine("c", 0.1, 0.3)}),
            (std::vector<int64_t>{2, 2, 1}));
}

TEST(Place, LeavesTheSlowestOutWhenThereAreMoreMachinesThanStages) {
  const auto config = with({"model.blocks=4", "pipeline.stages=2", "model.mode=dense"});
  const auto placement = place(config, kVocab, {machine("slow", 1), machine("b", 0.1), machine("c", 0.1)});
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement.value().peers, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(placement.value().why,
            "2 + 2 blocks on b, c: the slowest, stage 0 on b, takes 0.2 s a microbatch; slow left over");
}

TEST(Place, CountsASpeedThatIsNotKnownAsTheMeanOfTheOthers) {
  const auto config = with({"model.blocks=6", "pipeline.stages=3", "model.mode=dense"});
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1), machine("b", 0), machine("c", 0.1)}), (std::vector<int64_t>{2, 2, 2}));
}

TEST(Place, BearsTimesThatNoMachineTakes) {
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

TEST(Place, SplitsNoAnchorGroup) {
  const auto config =
      with({"model.blocks=8", "pipeline.stages=2", "subspace.anchors=stage", "subspace.anchor_groups=[1,3,4]"});
  EXPECT_EQ(cuts_of(config, {machine("a", 0.1, 0.2), machine("b", 0.1, 0.2)}), (std::vector<int64_t>{4, 4}));
  const auto free = with({"model.blocks=8", "pipeline.stages=2"});
  EXPECT_EQ(cuts_of(free, {machine("a", 0.1, 0.2), machine("b", 0.1, 0.2)}), (std::vector<int64_t>{5, 3}));
}

TEST(Place, NamesTheMachineThatLacksMemoryAndWhatWouldDo) {
  const auto config =
      with({"model.blocks=4", "pipeline.stages=2", "model.mode=dense", "model.d=1024", "model.heads=8"});
  const std::vector<Machine> small{machine("desk", 0.1), machine("phone", 0.1, 0, 300 << 20)};
  const auto said = refusal(config, small);
  EXPECT_TRUE(said.starts_with("phone has 300MiB of memory to give, too little for any division into 2 stages: "))
      << said;
  EXPECT_NE(said.find(" MiB would do; let a larger machine join, or lower train.microbatch"), std::string::npos);
  // What it says would do does.
  const size_t at = said.find("stages: ") + 8;
  const auto mib = std::stoull(said.substr(at));
  EXPECT_TRUE(place(config, kVocab, {small[0], machine("phone", 0.1, 0, mib << 20)}).ok());
  EXPECT_FALSE(place(config, kVocab, {small[0], machine("phone", 0.1, 0, (mib - 2) << 20)}).ok());
}

TEST(Place, SaysSoWhenNoOneMachineIsToBlame) {
  const auto config = with({"pipeline.stages=2"});
  const auto said = refusal(config, {machine("a", 0, 0, 20 << 20), machine("b", 0, 0, 10 << 20)});
  EXPECT_TRUE(said.starts_with("no division into 2 stages fits these 2 machines: b has the least, 10MiB")) << said;
}

TEST(Place, RefusesTooFewAndTooMany) {
  EXPECT_EQ(refusal(with({"pipeline.stages=3"}), {{.peer = "a"}, {.peer = "b"}}),
            "pipeline.stages = 3 needs as many machines, 2 are here; wait for 1 more, or set pipeline.stages = 2");
  EXPECT_EQ(refusal(with({"model.blocks=201", "pipeline.stages=1"}), {{.peer = "a"}}),
            "1 machines and 201 blocks: pipeline.cuts = \"auto\" places at most 16 and 200; give a list of cuts");
}

TEST(Place, TakesItsLargestSizesWithoutDelay) {
  const auto config = with({"model.blocks=200", "pipeline.stages=15", "model.d=64", "model.heads=2"});
  std::vector<Machine> machines;
  for (int i = 0; i < 16; ++i) machines.push_back(machine("m" + std::to_string(i), 0.1 + 0.013 * ((i * 7) % 16), 0.3));
  const auto cuts = cuts_of(config, machines);
  EXPECT_EQ(std::accumulate(cuts.begin(), cuts.end(), int64_t{0}), 200);
}

TEST(Placed, IsAConfigWithTheCutsWrittenDown) {
  const auto config = placed(with({"pipeline.stages=2"}), {.cuts = {1, 3}, .peers = {"a", "b"}, .why = ""});
  EXPECT_FALSE(config.pipeline.auto_cuts);
  EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{1, 3}));
}

TEST(ChooseStage, TakesTheLowestThatNobodyHas) {
  const auto choice = choose_stage(with({}), kVocab, {{0, true}, {3, false}, {2, false}, {1, true}}, 0);
  EXPECT_EQ(choice.stage, 2);
  EXPECT_EQ(choice.why, "stage 2: nobody has it");
}

TEST(ChooseStage, WaitsWhereEveryStageIsHeld) {
  const auto choice = choose_stage(with({}), kVocab, {{0, true}, {1, true}}, kPlenty);
  EXPECT_EQ(choice.stage, std::nullopt);
  EXPECT_EQ(choice.why, "waits: every stage has its worker");
}

TEST(ChooseStage, PassesOverWhatDoesNotFit) {
  const auto config = with({"train.microbatch=32"});
  const std::vector<Seat> seats{{0, false}, {1, true}, {2, true}, {3, false}};
  // The last stage holds one microbatch in flight where the first may hold four.
  const uint64_t memory = memory_plan(config, kVocab, 3).total() * 10 / 9 + 1000;
  ASSERT_LT(memory, memory_plan(config, kVocab, 0).total());
  const auto choice = choose_stage(config, kVocab, seats, memory);
  EXPECT_EQ(choice.stage, 3);
  EXPECT_EQ(choice.why, "stage 3: nobody has it, and stage 0 needs more memory than is here");
  const auto waits = choose_stage(config, kVocab, seats, memory - 10000);
  EXPECT_EQ(waits.stage, std::nullopt);
  EXPECT_TRUE(waits.why.starts_with("waits: stage 0 is free and needs ")) << waits.why;
}

}  // namespace
}  // namespace thinpipe
