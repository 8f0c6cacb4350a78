#include <gtest/gtest.h>

#include <vector>

#include "base/line.h"

namespace thinpipe {
namespace {

const std::vector<std::string> kWords{"model", "data", "train", "optim", "pipeline"};

TEST(Nearest, FindsTheWordOneSlipAway) {
  EXPECT_EQ(nearest("modle", kWords), "model");   // swapped
  EXPECT_EQ(nearest("modl", kWords), "model");    // left out
  EXPECT_EQ(nearest("modell", kWords), "model");  // doubled
  EXPECT_EQ(nearest("nodel", kWords), "model");   // replaced
  EXPECT_EQ(nearest("pipelines", kWords), "pipeline");
  EXPECT_EQ(nearest("train", kWords), "train");
}

TEST(Nearest, ASwapOfNeighboursIsOneSlip) {
  // As two replacements "ab" -> "ba" would be no nearer than "cd".
  EXPECT_EQ(nearest("trian", std::vector<std::string>{"tries", "train"}), "train");
}

TEST(Nearest, PrefersTheFirstOfEquals) { EXPECT_EQ(nearest("cat", std::vector<std::string>{"bat", "hat"}), "bat"); }

TEST(Nearest, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(nearest("xyzzyplugh", kWords), "");
  EXPECT_EQ(nearest("anything", {}), "");
  EXPECT_EQ(nearest("", kWords), "");
}

}  // namespace
}  // namespace thinpipe
