// Models with token tables as Hugging Face folders: the modeling file in the folder, run in PyTorch, computes what our
// own stage computes. Hugging Face's transformers itself is replaced by a stand-in (tests/models/modeling/).
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/fill.h"
#include "models.h"
#include "models/generator.h"
#include "models/hf_folder.h"
#include "models/llama.h"
#include "models/python_torch.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using nlohmann::json;
using test::PythonTorch;
using test::ScratchFolder;

struct TablesCase {
  int64_t tail;
  std::vector<int64_t> groups;  // blocks of each
  Previous previous;
  int64_t rank = 0;  // of the tables
};

// Five blocks: the lift comes after all of them, inside a group, at the beginning of a group, where the last group has
// no table, and before all of them. Then the same without tables for the previous token, and tables of low rank.
const std::vector<TablesCase> kTablesCases{
    {0, {2, 1, 2}, Previous::kTable},
    {1, {2, 1, 2}, Previous::kTable},
    {2, {2, 1, 2}, Previous::kTable},
    {2, {2, 2, 1}, Previous::kTable},
    {5, {2, 1, 2}, Previous::kTable},
    {0, {2, 1, 2}, Previous::kNone},
    {1, {2, 1, 2}, Previous::kNone},
    {2, {2, 1, 2}, Previous::kNone},
    {1, {5}, Previous::kNone},
    {1, {2, 1, 2}, Previous::kTable, /*rank=*/3},
    {0, {2, 1, 2}, Previous::kNone, /*rank=*/3},
};

RunConfig config_with_tables(const TablesCase& tables) {
  auto config = small_subspace();
  config.model.blocks = 5;
  config.model.subspace.full_rank_tail = tables.tail;
  config.model.subspace.anchors = Anchors::kStage;
  config.model.subspace.anchor_groups = tables.groups;
  config.model.subspace.previous = tables.previous;
  config.model.subspace.anchor_rank = tables.rank;
  return config;
}

// As after training: every table is different, and none is zero.
std::shared_ptr<Stage> model_with_tables(const RunConfig& config) {
  auto stage = make_model(config);
  for (auto& parameter : stage->parameters().all()) {
    if (!parameter.name.starts_with("anchors.") && !parameter.name.starts_with("previous.")) continue;
    const CounterRng rng(config.train.seed, parameter.name);
    parameter.value.copy_(fill_random(rng, parameter.value.sizes().vec(), 0.5, parameter.value.options()));
  }
  return stage;
}

at::Tensor tensor_of(const json& rows) {  // (T, V)
  const auto values = rows.get<std::vector<std::vector<double>>>();
  auto tensor =
      at::empty({static_cast<int64_t>(values.size()), static_cast<int64_t>(values.front().size())}, at::kDouble);
  for (size_t i = 0; i < values.size(); ++i) tensor[static_cast<int64_t>(i)].copy_(at::tensor(values[i], at::kDouble));
  return tensor;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

class ModelingFile : public testing::Test {
 protected:
  void SetUp() override { test::require_python_torch(); }

  // Returns the folder's path.
  std::string write(const RunConfig& config, const std::shared_ptr<Stage>& stage, const std::string& name) {
    const auto files = files_of(config, stage);
    write_hf_folder(scratch_ / name, merged_shape(config), files.tokenizer, merged_values(files)).take();
    return (scratch_ / name).string();
  }

  static json task(const std::string& folder, const json& ids) {
    return {{"folder", folder},  {"ids", ids},         {"mask", nullptr},
            {"labels", nullptr}, {"dtype", "float64"}, {"new_tokens", 0}};
  }

  ScratchFolder scratch_;
  const std::vector<int32_t> text_ = some_tokens(24);
  const TablesCase usual_{1, {2, 1, 2}, Previous::kTable};
};

// Our float64 weights are rounded to float32 in the folder: an error of 6e-8 each, over a few hundred in a row.
constexpr double kRoundedWeights = 1e-5;

TEST_F(ModelingFile, LogitsAreThoseOfTheModel) {
  json tasks = json::array();
  std::vector<at::Tensor> ours;
  for (const auto& tables : kTablesCases) {
    const auto config = config_with_tables(tables);
    const auto stage = model_with_tables(config);
    ours.push_back(logits_of(*stage, config.model, text_));
    tasks.push_back(task(write(config, stage, std::to_string(ours.size())), {text_}));
  }
  const auto answers = PythonTorch::get().run(tasks);
  ASSERT_TRUE(answers.is_array()) << answers;
  for (size_t i = 0; i < ours.size(); ++i) {
    SCOPED_TRACE(fmt::format("case {}", i));
    EXPECT_LT(largest_difference(tensor_of(answers[i]["logits"][0]), ours[i]), kRoundedWeights);
  }
}

TEST_F(ModelingFile, PaddedTexts_HaveTheLogitsOfTheTextsAlone) {
  const auto config = config_with_tables(usual_);
  const auto stage = model_with_tables(config);
  // The padding is a token that occurs in texts: only the mask says what it is.
  const std::vector<int32_t> shorter(text_.begin() + 1, text_.end() - 4);
  const size_t missing = text_.size() - shorter.size();
  std::vector<int32_t> left(missing, text_[5]), right = shorter;
  left.insert(left.end(), shorter.begin(), shorter.end());
  right.insert(right.end(), missing, text_[5]);
  std::vector<int> whole_mask(text_.size(), 1), left_mask = whole_mask, right_mask = whole_mask;
  std::fill_n(left_mask.begin(), missing, 0);
  std::fill_n(right_mask.rbegin(), missing, 0);
  auto padded = task(write(config, stage, "hf"), {text_, left, right});
  padded["mask"] = {whole_mask, left_mask, right_mask};
  const auto answers = PythonTorch::get().run(json::array({padded}));
  ASSERT_TRUE(answers.is_array()) << answers;
  const auto of_text = [&](size_t row) { return tensor_of(answers[0]["logits"][row]); };
  const auto length = static_cast<int64_t>(shorter.size()), pads = static_cast<int64_t>(missing);
  const auto alone = logits_of(*stage, config.model, shorter);
  EXPECT_LT(largest_difference(of_text(0), logits_of(*stage, config.model, text_)), kRoundedWeights);
  EXPECT_LT(largest_difference(of_text(1).narrow(0, pads, length), alone), kRoundedWeights);
  EXPECT_LT(largest_difference(of_text(2).narrow(0, 0, length), alone), kRoundedWeights);
}

TEST_F(ModelingFile, LossAndContinuationAreThoseOfTheModel) {
  const auto config = config_with_tables(usual_);
  const auto stage = model_with_tables(config);
  auto asked = task(write(config, stage, "hf"), {text_});
  asked["labels"] = {text_};
  asked["new_tokens"] = 6;
  const auto answers = PythonTorch::get().run(json::array({asked}));
  ASSERT_TRUE(answers.is_array()) << answers;
  const double loss = stage->evaluate(batch_of(text_), {}).loss_sum / static_cast<double>(text_.size() - 1);
  EXPECT_NEAR(answers[0]["loss"].get<double>(), loss, kRoundedWeights);
  Generator generator(*stage, config.model, 32);
  generator.read(text_);
  TokenPicker likeliest({.temperature = 0});
  for (int i = 0; i < 6; ++i) generator.next(likeliest).take();
  EXPECT_EQ(answers[0]["text"][0].get<std::vector<int32_t>>(), generator.tokens());
}

TEST_F(ModelingFile, RunsInFloat32AndBfloat16) {
  const auto config = config_with_tables(usual_);
  const auto stage = model_with_tables(config);
  const auto folder = write(config, stage, "hf");
  json tasks = json::array();
  for (const char* type : {"float32", "bfloat16"}) {  // PyTorch 1.13 has no float16 products on a CPU
    tasks.push_back(task(folder, {text_}));
    tasks.back()["dtype"] = type;
  }
  const auto answers = PythonTorch::get().run(tasks);
  ASSERT_TRUE(answers.is_array()) << answers;
  const auto ours = logits_of(*stage, config.model, text_);
  EXPECT_LT(largest_difference(tensor_of(answers[0]["logits"][0]), ours),
            1e-4);                                         // 24 bits, over a few hundred products
  const auto coarse = tensor_of(answers[1]["logits"][0]);  // 8 bits: 0.4 % each, over five blocks
  EXPECT_LT((coarse - ours).norm().item<double>() / ours.norm().item<double>(), 0.05);
}

}  // namespace
}  // namespace thinpipe
