#include "text/document_split.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "text/text_files.h"

namespace thinpipe {
namespace {

using test::validation_of;

TEST(DocumentSplit, IsAPureFunctionOfTheIndexNearTheFraction) {
  const auto few = validation_of(100, 0.05);
  const auto many = validation_of(20'000, 0.05);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  // 1000 expected, standard deviation 31.
  EXPECT_NEAR(static_cast<double>(std::count(many.begin(), many.end(), true)), 1000, 125);
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
