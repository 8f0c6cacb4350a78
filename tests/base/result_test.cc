#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace thinpipe {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return Error{fmt::format("{} is odd", number)};
  return number / 2;
}

TEST(Result, HoldsTheValueOrTheError) {
  EXPECT_TRUE(half(4).ok());
  EXPECT_EQ(half(4).value(), 2);
  EXPECT_FALSE(half(3).ok());
  EXPECT_EQ(half(3).error().message, "3 is odd");
}

TEST(Result, TakeMovesTheValueOut) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  EXPECT_EQ(*std::move(result).take(), 7);
}

TEST(Result, TakeOfAnErrorThrowsUserError) {
  try {
    half(5).take();
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "5 is odd");
  }
}

TEST(ResultDeathTest, ValueOfAnErrorStopsTheProgram) {
  EXPECT_DEATH((void)half(3).value(), "value\\(\\) of a failed Result: 3 is odd");
}

TEST(Status, IsOkUnlessGivenAnError) {
  EXPECT_TRUE(Status().ok());
  EXPECT_NO_THROW(Status().take());
  const Status failed = Error{"no"};
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "no");
  EXPECT_THROW(failed.take(), UserError);
}

TEST(CheckDeathTest, NamesTheConditionAndTheMessage) {
  EXPECT_DEATH(TP_CHECK(1 + 1 == 3, "sums to {}", 2),
               "internal fault at .*result_test.cc.*sums to 2 \\(1 \\+ 1 == 3\\)");
}

}  // namespace
}  // namespace thinpipe
