#include "model/basis.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/fixed_table.h"

namespace thinpipe {
namespace {

const at::TensorOptions kFloats = at::TensorOptions().dtype(at::kFloat);

TEST(Basis, IsOrthonormal) {
  for (const auto& [d, k] : {std::pair<int64_t, int64_t>{64, 8}, {100, 33}, {16, 16}, {5, 1}}) {
    const auto basis = make_basis(3, d, k);
    EXPECT_EQ(basis.u.sizes(), (std::vector<int64_t>{d, k}));
    EXPECT_LT((basis.u.t().mm(basis.u) - at::eye(k, at::kDouble)).abs().max().item<double>(), 1e-14);
  }
}

TEST(Basis, HasTheSameBitsOnEveryMachine) {
  // Golden values: plain double arithmetic in a fixed order. If they change, different builds cannot share a run.
  EXPECT_EQ(basis_hash(make_basis(1, 48, 6)), "df4b23d613d8088402d10335cffae4f4092494a9f5011d830fcb29d8f8bdc621");
  EXPECT_NE(basis_hash(make_basis(1, 48, 6)), basis_hash(make_basis(2, 48, 6)));
}

TEST(FixedTable, HasUnitVarianceTimesItsStd) {
  const FixedTable table(1, 500, 64, 0.3, kFloats);
  const auto all = table.whole().to(at::kDouble);
  EXPECT_NEAR(all.mean().item<double>(), 0, 0.01);  // 32000 values: 0.3 / sqrt(32000) = 0.0017
  EXPECT_NEAR(all.std().item<double>(), 0.3, 0.01);
  EXPECT_LE(all.abs().max().item<double>(), 0.3 * 1.7320509);
}

TEST(FixedTable, RowsDependOnlyOnTheirOwnId) {
  const FixedTable small(1, 50, 16, 1.0, kFloats), large(1, 5000, 16, 1.0, kFloats);
  const auto ids = at::tensor({7, 49, 0, 7}, at::kLong);
  EXPECT_TRUE(at::equal(small.rows(ids), large.rows(ids)));
  EXPECT_TRUE(at::equal(small.rows(ids)[0], small.rows(ids)[3]));
  EXPECT_TRUE(at::equal(small.whole()[49], small.rows(ids)[1]));
}

TEST(FixedTable, IsFullRank) {
  const FixedTable table(1, 80, 16, 1.0, at::TensorOptions().dtype(at::kDouble));
  EXPECT_GT(at::linalg_svdvals(table.whole()).min().item<double>(), 1.0);
}

TEST(FixedTable, HashIsGoldenAndTheSameInEveryPrecision) {
  const FixedTable narrow(1, 2000, 24, 0.3, kFloats), wide(1, 2000, 24, 0.3, at::TensorOptions().dtype(at::kDouble));
  EXPECT_EQ(narrow.hash(), wide.hash());
  EXPECT_EQ(narrow.hash(), "40d701822f237b6d03b2b877b4334d7bc6a56deb6927b3e1976ca738a567f57e");
  EXPECT_NE(narrow.hash(), FixedTable(2, 2000, 24, 0.3, kFloats).hash());
}

}  // namespace
}  // namespace thinpipe
