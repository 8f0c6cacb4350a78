// Estimates must change in the right direction and stay within the bounds of measurements. live_plan_test.cc compares
// the exact numbers with live models.
#include "plan/memory_plan.h"

#include <gtest/gtest.h>

#include "config/config_file.h"

namespace thinpipe {
namespace {

constexpr double kMiB = 1 << 20;

RunConfig with(const std::vector<std::string>& settings) {
  const std::vector<std::string> four{"model.blocks=4"};  // unless the settings say otherwise
  return parse_config("", "x.toml", settings, four);
}

TEST(MemoryPlan, Bf16KeepsFloat32AndFloat64TakesTwice) {
  const auto plan_of = [](const char* precision) {
    return memory_plan(with({"model.mode=dense", "pipeline.stages=1", std::string("train.precision=") + precision}),
                       4096, 0);
  };
  EXPECT_EQ(plan_of("bf16").parameters, plan_of("float32").parameters);
  EXPECT_GT(plan_of("bf16").activations, plan_of("float32").activations);  // rounded operands
  EXPECT_EQ(plan_of("float64").parameters, 2 * plan_of("float32").parameters);
}

TEST(MemoryPlan, OnlyTheLastStageHasLogitsAndOnlyNeighboursHaveQueues) {
  const auto config = with({"pipeline.stages=3"});
  EXPECT_EQ(memory_plan(config, 4096, 0).logits, 0u);
  EXPECT_GT(memory_plan(config, 4096, 2).logits, 0u);
  EXPECT_GT(memory_plan(config, 4096, 1).queues, memory_plan(config, 4096, 0).queues);
  EXPECT_EQ(memory_plan(with({"pipeline.stages=1"}), 4096, 0).queues, 0u);
}

TEST(MemoryPlan, AsynchronousCheckpointNeedsACopyOfTheState) {
  const auto config = with({"checkpoint.mode=async"});
  EXPECT_EQ(memory_plan(config, 4096, 1).checkpoint_copy, state_bytes(config, 4096, blocks_of_stage(config, 1)));
}

TEST(MemoryPlan, CountsNoCopyOfACheckpointThatIsWrittenBetweenTwoSteps) {
  for (const char* mode : {"checkpoint.mode=sync", "checkpoint.mode=auto"}) {
    EXPECT_EQ(memory_plan(with({mode}), 4096, 1).checkpoint_copy, 0u) << mode;
  }
}

TEST(MemoryPlan, MomentsInBf16TakeHalf) {
  for (const char* kind : {"optim.kind=adamw", "optim.kind=row_adamw", "optim.kind=muon"}) {
    const auto full = with({kind}), half = with({kind, "optim.state=bf16"});
    const auto blocks = blocks_of_stage(full, 1);
    double weights = 0;
    for (const auto& spec : model_spec(full.model, 4096, blocks)) weights += 4 * static_cast<double>(spec.elements());
    const double rest = weights + 8.0 * static_cast<double>(full.model.d * full.model.subspace.rank);  // and the basis
    EXPECT_EQ(2 * (static_cast<double>(state_bytes(half, 4096, blocks)) - rest),
              static_cast<double>(state_bytes(full, 4096, blocks)) - rest)
        << kind;
  }
}

TEST(MemoryPlan, CountsAGivenTableOfAnySize) {
  const std::string hash(64, 'a');
  const auto parameters = [&](const std::string& table, int64_t vocab, const char* precision) {
    return memory_plan(with({"model.table=" + table, "model.d=1024", "model.heads=8",
                             std::string("train.precision=") + precision}),
                       vocab, 1)
        .parameters;
  };
  EXPECT_EQ(parameters(hash, 4096, "float32"), parameters("", 4096, "float32"));
  constexpr int64_t kMany = 200'000;  // 781 MiB: rows of a table from the seed would be made on demand
  EXPECT_EQ(parameters(hash, kMany, "float32") - parameters("", kMany, "float32"), uint64_t{4} * kMany * 1024);
  EXPECT_EQ(parameters(hash, kMany, "float64") - parameters("", kMany, "float64"), uint64_t{12} * kMany * 1024);
}

// The coordinator chooses the warm-up from the lines it measures, not from [link].
TEST(MostInFlight, IsAllMicrobatchesExceptAtTheLastStageOf1f1b) {
  const auto of = [](std::vector<std::string> settings, int64_t stage) {
    settings.emplace_back("train.microbatches=8");
    return most_in_flight(with(settings), stage);
  };
  EXPECT_EQ(of({"link.rate=unlimited"}, 0), 8);
  EXPECT_EQ(of({"link.rate=unlimited"}, 2), 8);
  EXPECT_EQ(of({"link.rate=unlimited"}, 3), 1);
  EXPECT_EQ(of({"link.rate=unlimited", "link.delay=50ms"}, 2), 8);
  EXPECT_EQ(of({"pipeline.schedule=gpipe"}, 3), 8);
}

TEST(MemoryPlan, ActivationsGrowWithMicrobatchesInFlight) {
  const auto activations = [](const char* schedule) {
    const auto config = with({"model.mode=dense", "pipeline.stages=1", std::string("pipeline.schedule=") + schedule});
    return static_cast<double>(memory_plan(config, 4096, 0).activations);
  };
  EXPECT_GT(activations("gpipe"), 3 * activations("1f1b"));
  EXPECT_LT(activations("gpipe"), 4 * activations("1f1b"));
}

TEST(MemoryPlan, LargestValidConfigDoesNotOverflow) {
  const auto config =
      with({"model.d=65536", "model.mlp_width=1048576", "model.blocks=4096", "model.heads=1024", "train.seq_len=65536",
            "train.microbatch=4096", "train.microbatches=1024", "pipeline.stages=1", "pipeline.schedule=gpipe"});
  const auto plan = memory_plan(config, 1 << 24, 0);
  EXPECT_GE(plan.total(), plan.activations);
  EXPECT_GE(plan.activations, uint64_t{1'000'000'000'000'000'000});
}

TEST(StepTraffic, HasOneDirectionPerNeighbour) {
  const auto config = with({"model.mode=dense", "pipeline.cuts=[1, 1, 2]"});
  const auto first = step_traffic(config, 4096, 0), middle = step_traffic(config, 4096, 1),
             last = step_traffic(config, 4096, 2);
  EXPECT_GT(first.sent, first.received);  // ids go forward only
  EXPECT_EQ(first.sent, last.received);
  EXPECT_EQ(first.received, last.sent);
  EXPECT_EQ(middle.sent, first.sent + last.sent);
  EXPECT_EQ(middle.received, first.received + last.received);
}

TEST(Describe, PrintsOneLineWithTheLargestPartsFirst) {
  MemoryPlan plan;
  plan.parameters = 30 << 20;
  plan.activations = 200 << 20;
  plan.base = 100 << 20;
  plan.queues = 1000;
  EXPECT_EQ(describe(plan), "331 MiB: activations 200, program 100, weights 30");
}

}  // namespace
}  // namespace thinpipe
