#include "run/samples.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "run/sample_child.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

std::vector<int64_t> steps_of(const std::filesystem::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& sample : read_samples(folder)) steps.push_back(sample.step);
  return steps;
}

TEST(Samples, AreKeptInTheOrderOfTheSteps_AndLaterOnesGoWhenTheRunGoesBack) {
  const test::ScratchFolder folder;
  EXPECT_TRUE(read_samples(folder.path()).empty());
  for (const int64_t step : {40, 80, 120}) add_sample(folder.path(), {step, "In the\nbeginning \xff"}).take();
  EXPECT_EQ(steps_of(folder.path()), (std::vector<int64_t>{40, 80, 120}));
  EXPECT_EQ(read_samples(folder.path()).front().text.find('\n'), std::string::npos);
  add_sample(folder.path(), {80, "again"}).take();
  EXPECT_EQ(steps_of(folder.path()), (std::vector<int64_t>{40, 80}));
  EXPECT_EQ(sample_text(read_samples(folder.path()).back()), "sample after step 80: again");
}

TEST(Samples, LinesThatAreNotOurs_AreLeftOut) {
  const test::ScratchFolder folder;
  write_file_atomically(folder / "samples.jsonl",
                        "{\"step\":1,\"text\":\"a\"}\nnonsense\n[]\n{\"step\":\"2\",\"text\":\"b\"}\n{\"step\":3}\n"
                        "{\"step\":4,\"text\":\"d\"}\n{\"step\":5,\"te")
      .take();
  EXPECT_EQ(steps_of(folder.path()), (std::vector<int64_t>{1, 4}));
}

TEST(Samples, DoNotPileUp) {
  const test::ScratchFolder folder;
  std::string lines;
  for (size_t i = 0; i < kMostSamples + 5; ++i) lines += "{\"step\":" + std::to_string(i) + ",\"text\":\"x\"}\n";
  write_file_atomically(folder / "samples.jsonl", lines).take();
  add_sample(folder.path(), {1'000'000, "new"}).take();
  const auto steps = steps_of(folder.path());
  EXPECT_EQ(steps.size(), kMostSamples);
  EXPECT_EQ(steps.back(), 1'000'000);
}

TEST(Samples, AreDueAtTheFirstCheckpointAfterEverySoManySteps) {
  EXPECT_TRUE(sample_is_due(40, 0, 40));
  EXPECT_FALSE(sample_is_due(40, 0, 20));
  EXPECT_TRUE(sample_is_due(40, 20, 60)) << "checkpoints of other steps";
  EXPECT_FALSE(sample_is_due(40, 60, 60));
  EXPECT_FALSE(sample_is_due(40, 60, 70));
  EXPECT_FALSE(sample_is_due(40, 80, 40)) << "the run went back";
  EXPECT_FALSE(sample_is_due(0, 0, 40));
  EXPECT_FALSE(sample_is_due(40, 0, -1)) << "there is no checkpoint";
}

}  // namespace
}  // namespace thinpipe
