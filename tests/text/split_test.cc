#include "text/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "text/text_files.h"

namespace thinpipe {
namespace {

using test::validation_of;

TEST(DocumentSplit, DependsOnTheIndexAloneAndMeetsTheFraction) {
  const auto few = validation_of(100, 0.05);
  const auto many = validation_of(20'000, 0.05);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  // 1000 expected, standard deviation 31.
  EXPECT_NEAR(static_cast<double>(std::count(many.begin(), many.end(), true)), 1000, 125);
}

// Checked once against a second implementation, written from docs/data.md and docs/rng.md. A change would move
// documents that a run was trained on into its validation split.
TEST(DocumentSplit, GoldenDocuments) {
  const auto indices = [](double fraction) {
    std::vector<size_t> found;
    const auto val = validation_of(2000, fraction);
    for (size_t i = 0; i < val.size() && found.size() < 12; ++i) {
      if (val[i]) found.push_back(i);
    }
    return found;
  };
  EXPECT_EQ(indices(0.01), (std::vector<size_t>{15, 20, 675, 728, 875, 1018, 1019, 1066, 1079, 1194, 1248, 1556}));
  EXPECT_EQ(indices(0.05), (std::vector<size_t>{15, 18, 20, 60, 70, 77, 85, 91, 99, 144, 165, 170}));
}

TEST(DocumentSplit, AlwaysHasBothSides) {
  for (size_t n = 2; n < 30; ++n) {
    for (const double fraction : {0.0, 0.001, 0.5, 0.999}) {
      const auto val = validation_of(n, fraction);
      const auto count = static_cast<size_t>(std::count(val.begin(), val.end(), true));
      EXPECT_TRUE(count > 0 && count < n) << n << " documents, fraction " << fraction;
    }
  }
}

}  // namespace
}  // namespace thinpipe
