#include "pipeline/step_barrier.h"

#include <gtest/gtest.h>

#include <thread>

#include "pipeline/basis_message.h"

namespace thinpipe {
namespace {

TEST(StepBarrier, GathersOneReportPerStageInStageOrder) {
  StepBarrier barrier(3);
  barrier.give(RunStep{4});
  std::vector<std::thread> stages;
  for (size_t i = 3; i-- > 0;) {
    stages.emplace_back([&barrier, i] {
      const auto command = barrier.next(i).take();
      StageReport report;
      report.squared_norm = static_cast<double>(std::get<RunStep>(command).step) + static_cast<double>(i);
      barrier.report(i, report);
    });
  }
  const auto reports = barrier.gather().take();
  for (auto& stage : stages) stage.join();
  ASSERT_EQ(reports.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(reports[i].squared_norm, 4.0 + static_cast<double>(i));
}

TEST(StepBarrier, FirstFailureSticksAndWakesEverybody) {
  StepBarrier barrier(2);
  std::string stage_saw, coordinator_saw;
  std::thread stage([&] { stage_saw = barrier.next(0).error().message; });
  std::thread coordinator([&] { coordinator_saw = barrier.gather().error().message; });
  barrier.fail("stage 1: out of cheese");
  barrier.fail("something later");
  stage.join();
  coordinator.join();
  EXPECT_EQ(stage_saw, "stage 1: out of cheese");
  EXPECT_EQ(coordinator_saw, "stage 1: out of cheese");
}

TEST(BasisMessage, RefusesWhatIsNotTheNextOrthonormalBasis) {
  const auto current = make_basis(1, 10, 3);
  Basis next{make_basis(2, 10, 3).u, 1};
  auto message = encode_basis(next);
  EXPECT_EQ(basis_hash(decode_basis(message, current).take()), basis_hash(next));
  EXPECT_FALSE(decode_basis(std::span(message).first(message.size() - 1), current).ok());
  EXPECT_FALSE(decode_basis(message, next).ok());                  // version 1 where 2 is due
  EXPECT_FALSE(decode_basis(message, make_basis(1, 10, 4)).ok());  // another shape
  message[20] ^= std::byte{0x7f};
  EXPECT_FALSE(decode_basis(message, current).ok());  // not orthonormal any more
}

}  // namespace
}  // namespace thinpipe
