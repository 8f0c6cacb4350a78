// The choice between the anchor table and the direct form of reading coordinates (METHOD 1b), as forward leaves its
// traces: the table form keeps U^T diag(g) W, the direct form x. plan/memory_plan.cc counts on the same rule.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "model/numeric.h"
#include "model/small_models.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 64;

ModelConfig config_of(InputForm form) {
  auto config = small_model(ModelMode::kSubspace);
  config.d = 32;
  config.init_std = 0.2;
  config.subspace.rank = 4;
  config.subspace.input = form;
  return config;
}

Stage model_that_reads(InputForm form) { return uncut_stage(config_of(form), kVocab); }

// One sequence whose inputs are `rows` tokens, `distinct` of them different.
TokenBatch tokens_of(int64_t rows, int64_t distinct) {
  return {at::arange(rows + 1, at::kLong).remainder(distinct).view({1, rows + 1})};
}

// Whether the subspace blocks (all but the last) read with the table; all of their reads must agree.
bool reads_with_table(Stage& stage, const TokenBatch& batch) {
  const auto pass = stage.forward(batch, {}, 1.0);
  const bool table = pass.blocks.front().attention_read.m.defined();
  for (size_t i = 0; i + 1 < pass.blocks.size(); ++i) {
    for (const auto* read : {&pass.blocks[i].attention_read, &pass.blocks[i].mlp_read}) {
      EXPECT_EQ(read->m.defined(), table);
      EXPECT_EQ(read->x.defined(), !table);
    }
  }
  return table;
}

TEST(InputForm, IsTheTableForALargeMicrobatchOfFewDistinctTokens) {
  auto stage = model_that_reads(InputForm::kAuto);
  EXPECT_TRUE(reads_with_table(stage, tokens_of(256, 8)));
  EXPECT_TRUE(reads_with_table(stage, tokens_of(256, 64)));
}

TEST(InputForm, IsDirectForASingleTokenAndWhereNoTokenRepeats) {
  auto stage = model_that_reads(InputForm::kAuto);
  EXPECT_FALSE(reads_with_table(stage, tokens_of(1, 1)));
  EXPECT_FALSE(reads_with_table(stage, tokens_of(63, 64)));
}

TEST(InputForm, TurnsWhereTheProductsCostTheSame) {
  // 1.25 (BT k + u d) = BT d with d = 32, k = 4, BT = 80 at u = 54.
  auto stage = model_that_reads(InputForm::kAuto);
  EXPECT_TRUE(reads_with_table(stage, tokens_of(80, 53)));
  EXPECT_FALSE(reads_with_table(stage, tokens_of(80, 54)));
}

TEST(InputForm, IsTheOneAskedForWhateverTheMicrobatch) {
  auto table = model_that_reads(InputForm::kTable), direct = model_that_reads(InputForm::kDirect);
  for (const auto& batch : {tokens_of(1, 1), tokens_of(256, 8)}) {
    EXPECT_TRUE(reads_with_table(table, batch));
    EXPECT_FALSE(reads_with_table(direct, batch));
  }
}

TEST(InputForm, ComputesTheSameLossAndGradientsInEither) {
  // Sums of at most a few hundred terms in double, three blocks deep.
  constexpr double kRounding = 1e-12;
  for (const auto& batch : {tokens_of(1, 1), tokens_of(256, 8), tokens_of(80, 54)}) {
    auto table = model_that_reads(InputForm::kTable), direct = model_that_reads(InputForm::kDirect);
    auto of_table = table.forward(batch, {}, 0.1), of_direct = direct.forward(batch, {}, 0.1);
    EXPECT_NEAR(of_table.loss_sum, of_direct.loss_sum, kRounding * of_direct.loss_sum);
    table.backward(std::move(of_table), {});
    direct.backward(std::move(of_direct), {});
    for (const auto& parameter : direct.parameters().all()) {
      EXPECT_LT(relative_error(table.parameters().find(parameter.name)->grad, parameter.grad), kRounding)
          << parameter.name << ", " << batch.length() << " tokens";
    }
  }
}

TEST(InputForm, OfGenerationIsDirectTokenByToken) {
  // The two forms round differently, so the last bits tell which was taken.
  const auto read = [](InputForm form) {
    const auto stage = model_that_reads(form);
    KvCache cache(config_of(form), 4, stage.options());
    std::vector<at::Tensor> rows;
    for (int64_t token = 0; token < 4; ++token) rows.push_back(stage.extend(at::full({1}, token, at::kLong), cache));
    return at::cat(rows);
  };
  const auto automatic = read(InputForm::kAuto), direct = read(InputForm::kDirect), table = read(InputForm::kTable);
  EXPECT_TRUE(at::equal(automatic, direct));
  EXPECT_FALSE(at::equal(table, direct));
  EXPECT_LT(relative_error(table, direct), 1e-12);
}

}  // namespace
}  // namespace thinpipe
