// Every verdict at its limit, with the sentence that a person reads.
#include "plan/preflight.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace thinpipe {
namespace {

constexpr uint64_t kMiB = 1 << 20;

PreflightFacts good() {
  PreflightFacts facts;
  facts.stage = 2;
  facts.protocol = 3;
  facts.build = "0.1.0 (abc)";
  facts.memory_needed = 400 * kMiB;
  facts.memory_available = 445 * kMiB;  // a stage may use 90 % of it
  facts.disk_needed = 90 * kMiB;
  facts.disk_free = 90 * kMiB;
  facts.compute_s_per_step = 2;
  facts.run = {.protocol = 3,
               .build = "0.1.0 (abc)",
               .seed_numbers_fault = std::nullopt,
               .download_bytes = 30 * kMiB,
               .round_trip_s = 0.04,
               .clock_offset_s = 0.2,
               .up_bits_per_s = 10e6,
               .down_bits_per_s = 50e6,
               .up_bytes_per_step = 1e6,
               .down_bytes_per_step = 1e6,
               .others_s_per_step = 1.5};
  return facts;
}

Check check_of(const PreflightFacts& facts, const std::string& name) {
  for (const auto& check : preflight(facts)) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no check " << name;
  return {};
}

TEST(Preflight, AcceptsAGoodMachine) {
  const auto checks = preflight(good());
  EXPECT_EQ(checks.size(), 8u);
  EXPECT_EQ(verdict(checks), Verdict::kOk);
  EXPECT_TRUE(std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.remedy.empty(); }));
}

TEST(Preflight, WithoutFacts_ChecksNothing) { EXPECT_TRUE(preflight({}).empty()); }

TEST(Preflight, RefusesAnotherProtocol) {
  auto facts = good();
  facts.run->protocol = 4;
  auto check = check_of(facts, "protocol");
  EXPECT_EQ(check.verdict, Verdict::kRefusal);
  EXPECT_EQ(check.text, "this program uses 3, the run uses 4");
  EXPECT_EQ(check.remedy, "install the version of thinpipe that the run uses; this one is older");
  facts.run->protocol = 2;
  EXPECT_NE(check_of(facts, "protocol").remedy.find("this one is newer"), std::string::npos);
}

TEST(Preflight, WarnsAboutAnotherBuild) {
  auto facts = good();
  facts.run->build = "0.1.0 (def)";
  EXPECT_EQ(check_of(facts, "build").verdict, Verdict::kWarning);
  EXPECT_EQ(check_of(facts, "build").text, "this is 0.1.0 (abc), the run is 0.1.0 (def)");
}

TEST(Preflight, RefusesAMachineWhoseSeedGivesOtherNumbers) {
  auto facts = good();
  facts.run->seed_numbers_fault = "";
  EXPECT_EQ(check_of(facts, "seed").verdict, Verdict::kOk);
  facts.run->seed_numbers_fault = "another table";
  EXPECT_EQ(check_of(facts, "seed").verdict, Verdict::kRefusal);
  EXPECT_EQ(check_of(facts, "seed").text, "another table");
}

TEST(Preflight, RefusesTooLittleMemoryAndSaysHowMuchIsMissing) {
  auto facts = good();
  facts.memory_available = 444 * kMiB;
  EXPECT_EQ(check_of(facts, "memory").verdict, Verdict::kRefusal);
  facts.memory_available = 250 * kMiB;
  const auto check = check_of(facts, "memory");
  EXPECT_EQ(check.text, "stage 2 needs up to 400 MiB; this machine may use 225 MiB of its 250 MiB");
  EXPECT_TRUE(check.remedy.starts_with("175 MiB too little: ")) << check.remedy;
  EXPECT_NE(check.remedy.find("train.microbatch"), std::string::npos);
}

TEST(Preflight, RefusesTooLittleDisk) {
  auto facts = good();
  facts.disk_free = 89 * kMiB;
  const auto check = check_of(facts, "disk");
  EXPECT_EQ(check.verdict, Verdict::kRefusal);
  EXPECT_TRUE(check.remedy.starts_with("1 MiB too little: ")) << check.remedy;
}

TEST(Preflight, WarnsOfAClockThatIsSurelyMoreThanFiveMinutesOff) {
  auto facts = good();
  facts.run->clock_offset_s = 720;
  auto check = check_of(facts, "clock");
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_EQ(check.text, "12 min ahead of the run's clock");
  facts.run->clock_offset_s = -1e9;
  EXPECT_EQ(check_of(facts, "clock").verdict, Verdict::kWarning);
  facts.run->clock_offset_s = -301;
  EXPECT_EQ(check_of(facts, "clock").verdict, Verdict::kWarning);
  EXPECT_NE(check_of(facts, "clock").text.find("behind"), std::string::npos);
  // The answer may have taken the whole round trip.
  facts.run->round_trip_s = 4;
  EXPECT_EQ(check_of(facts, "clock").verdict, Verdict::kOk);
  facts.run->round_trip_s = 0;
  facts.run->clock_offset_s = 300;
  EXPECT_EQ(check_of(facts, "clock").verdict, Verdict::kOk);
}

TEST(Preflight, WarnsAboutALinkSlowerThanTheComputation) {
  auto facts = good();
  facts.run->up_bits_per_s = 2e6;  // 1 MB: 4 s
  const auto check = check_of(facts, "link");
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_EQ(check.text,
            "2.0 Mbit/s up, 50 Mbit/s down, 40 ms round trip, 4.0 s per step, longer than the computation (2.0 s)");
  facts.run->up_bits_per_s = 4e6;
  EXPECT_EQ(check_of(facts, "link").verdict, Verdict::kOk);
  facts.run->down_bits_per_s = 1e6;
  EXPECT_EQ(check_of(facts, "link").verdict, Verdict::kWarning);
}

TEST(Preflight, WarnsAboutAStepThreeTimesSlowerThanTheOthers) {
  auto facts = good();
  facts.run->others_s_per_step = 0.5;
  const auto check = check_of(facts, "speed");
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_EQ(check.text, "about 2.0 s per step, the others need 0.5 s: 4.0 times as long");
  facts.run->others_s_per_step = 2.0 / 3;
  EXPECT_EQ(check_of(facts, "speed").verdict, Verdict::kOk);
}

TEST(Preflight, WithoutALinkRate_LeavesTheTimesOut) {
  auto facts = good();
  facts.run->up_bits_per_s = 0;
  facts.run->down_bits_per_s = 0;
  EXPECT_EQ(check_of(facts, "link").verdict, Verdict::kOk);
  EXPECT_EQ(check_of(facts, "download").text, "30 MiB before it can start");
}

TEST(Render, AlignsTheLinesAndPutsAdviceBelow) {
  auto facts = PreflightFacts{};
  facts.memory_needed = 30 * kMiB;
  facts.memory_available = 10 * kMiB;
  facts.compute_s_per_step = 1;
  const auto text = render(preflight(facts));
  EXPECT_TRUE(
      text.starts_with("no       memory  a stage needs up to 30 MiB; this machine may use 9 MiB of its 10 MiB\n"
                       "                 -> 21 MiB too little: "))
      << text;
  EXPECT_TRUE(text.ends_with("\nok       speed   about 1.0 s per step\n")) << text;
  EXPECT_EQ(verdict(preflight(facts)), Verdict::kRefusal);
  EXPECT_EQ(render({}), "");
}

TEST(Preflight, FastLinks_AreReadable) {
  PreflightFacts facts;
  facts.run.emplace();
  facts.run->up_bits_per_s = 1.33e9;
  facts.run->down_bits_per_s = 133e6;
  const auto text = render(preflight(facts));
  EXPECT_NE(text.find("1.3 Gbit/s up, 133 Mbit/s down"), std::string::npos) << text;
}

TEST(Preflight, WholeRun_IsRefusedIfItNeedsMoreThanNineTenthsOfTheMemory) {
  EXPECT_EQ(check_memory_of_run(900 * kMiB, 1000 * kMiB).verdict, Verdict::kOk);
  EXPECT_EQ(check_memory_of_run(901 * kMiB, 1000 * kMiB).verdict, Verdict::kRefusal);
  EXPECT_EQ(check_memory_of_run(901 * kMiB, 0).verdict, Verdict::kOk) << "unknown";
}

TEST(Preflight, RefusesAStageAboveTheOwnersLimit) {
  auto facts = good();
  facts.memory_limit = 400 * kMiB;
  EXPECT_EQ(check_of(facts, "memory").verdict, Verdict::kOk);
  facts.memory_limit = 380 * kMiB;
  auto check = check_of(facts, "memory");
  EXPECT_EQ(check.verdict, Verdict::kRefusal);
  EXPECT_EQ(check.text, "stage 2 needs up to 400 MiB, and --max-memory allows 380 MiB");
  EXPECT_TRUE(check.remedy.starts_with("20 MiB too little: allow more, or ")) << check.remedy;
  facts.memory_available = 0;
  EXPECT_EQ(check_of(facts, "memory").verdict, Verdict::kRefusal) << "what is free is unknown";
  facts.memory_limit = 500 * kMiB;
  EXPECT_EQ(check_of(facts, "memory").verdict, Verdict::kOk);
}

TEST(MemoryOfRun, AboveTheOwnersLimit_IsRefused) {
  EXPECT_EQ(check_memory_of_run(400 * kMiB, 1000 * kMiB, 400 * kMiB).verdict, Verdict::kOk);
  const auto check = check_memory_of_run(400 * kMiB, 1000 * kMiB, 399 * kMiB);
  EXPECT_EQ(check.verdict, Verdict::kRefusal);
  EXPECT_EQ(check.text, "this run needs up to 400 MiB, and --max-memory allows 399 MiB");
}

}  // namespace
}  // namespace thinpipe
