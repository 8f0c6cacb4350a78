// A merged model is a plain LLaMA that computes the same, and an imported plain LLaMA is the same model again.
#include "models/llama.h"

#include <gtest/gtest.h>

#include "models.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

double loss_of(const Stage& stage) { return stage.evaluate(batch_of(some_tokens(34)), {}).loss_sum; }

// A dense model made by importing the merged values.
std::unique_ptr<Stage> dense_from(const ModelFiles& files) {
  const auto shape = plain_shape(files.config);
  const auto values = merged_values(files);
  auto config = files.config;
  config.model = dense_model_of(shape);
  auto dense = files_of(config, nullptr);
  dense.parameter = [=](const std::string& name) { return dense_parameter(shape, values, name); };
  return load_model(dense, "cpu");
}

TEST(PlainLlama, MergedModelComputesTheSame) {
  std::vector<RunConfig> configs{small_dense()};
  for (const int64_t tail : {0, 1, 3}) {
    configs.push_back(small_subspace());
    configs.back().model.subspace.full_rank_tail = tail;
  }
  for (const auto& config : configs) {
    const auto stage = make_model(config);
    // Values are rounded to float32: an error of 6e-8 each, over a few hundred in a row.
    EXPECT_NEAR(loss_of(*dense_from(files_of(config, stage))) / loss_of(*stage), 1, 1e-6);
  }
}

TEST(PlainLlama, ValuesHaveTheShapesOfTheFormat) {
  const auto config = small_subspace();
  const auto files = files_of(config, make_model(config));
  const auto values = merged_values(files);
  for (const auto& tensor : llama_tensors(plain_shape(config))) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    EXPECT_EQ(static_cast<int64_t>(values(tensor.name).value().size()), count) << tensor.name;
  }
}

std::string refusal(const RunConfig& config) {
  return test::user_error([&] { plain_shape(config); });
}

TEST(PlainLlama, RefusesFeaturesThatALlamaDoesNotHave) {
  EXPECT_EQ(refusal(small_subspace()), "");
  auto config = small_dense();
  config.model.positions = Positions::kSinusoidal;
  EXPECT_NE(refusal(config).find("model.positions = \"sinusoidal\""), std::string::npos);
  config = small_dense();
  config.model.qk_norm = true;
  EXPECT_NE(refusal(config).find("model.qk_norm"), std::string::npos);
}

TEST(PlainLlama, RefusesTokenTablesAndSaysWhatToDo) {
  auto config = small_subspace();
  config.model.subspace.anchors = Anchors::kStage;
  EXPECT_EQ(
      refusal(config),
      "this model is not a plain LLaMA: subspace.anchors = \"stage\"; a LLaMA adds a token's row only once, at the "
      "embedding. llama.cpp cannot use it. Export it with --format hf, which adds the code that transformers needs for "
      "it, or train a model with model.recipe = \"llama\"");
  EXPECT_EQ(export_limit(config), refusal(config));
  EXPECT_EQ(export_limit(small_subspace()), "");
  config.model.qk_norm = true;
  EXPECT_NE(test::user_error([&] { merged_shape(config); }).find("model.qk_norm"), std::string::npos);
}

at::Tensor imported(const ImportedModel& model, const std::string& name) {
  for (const auto& [own, value] : model.parameters) {
    if (own == name) return value;
  }
  ADD_FAILURE() << name << " was not imported";
  return at::zeros({1});
}

TEST(ImportLlama, DenseModelIsImportedUnchanged) {
  const auto config = small_dense();
  const auto stage = make_model(config);
  const auto files = files_of(config, stage);
  const auto model = import_llama(plain_shape(config), merged_values(files), config.model).take();
  ASSERT_EQ(model.parameters.size(), stage->parameters().all().size());
  for (const auto& parameter : stage->parameters().all()) {
    EXPECT_TRUE(at::equal(imported(model, parameter.name), parameter.value.to(at::kFloat))) << parameter.name;
  }
  EXPECT_EQ(model.energy_lost, 0);
}

TEST(ImportLlama, ModelInASubspaceLosesNothing) {
  const auto config = small_subspace();
  const auto stage = make_model(config);
  const auto files = files_of(config, stage);
  const auto model = import_llama(plain_shape(config), merged_values(files), config.model).take();
  EXPECT_NEAR(model.energy_lost, 0, 1e-12);
  // The same subspace, possibly with another basis.
  const auto& u = stage->subspace()->basis().u;
  EXPECT_LT((model.basis.mm(model.basis.t()) - u.mm(u.t())).abs().max().item<double>(), 1e-6);
  EXPECT_LT((model.basis.t().mm(model.basis) - at::eye(5, at::kDouble)).abs().max().item<double>(), 1e-12);
  // Table and coordinates together are the embedding.
  const auto plain = merged_values(files)("model.embed_tokens.weight").take();
  const auto rebuilt =
      model.table.to(at::kDouble).addmm(imported(model, "embedding_coordinates").to(at::kDouble), model.basis.t());
  for (int64_t i = 0; i < rebuilt.numel(); i += 97) {
    EXPECT_NEAR(rebuilt.view(-1)[i].item<double>(), plain[static_cast<size_t>(i)], 1e-7);
  }
}

// The best k-dimensional subspace of all matrices, stacked, keeps their k largest singular values.
TEST(ImportLlama, FindsTheBestSubspaceAndReportsTheLostEnergy) {
  const auto dense = small_dense();
  const auto stage = make_model(dense);
  const auto files = files_of(dense, stage);
  const auto model = import_llama(plain_shape(dense), merged_values(files), small_subspace().model).take();
  std::vector<at::Tensor> outputs;
  for (const char* name : {"blocks.0.wp1", "blocks.0.wp2", "blocks.1.wp1", "blocks.1.wp2"}) {
    outputs.push_back(stage->parameters().find(name)->value);
  }
  const auto squares = std::get<1>(at::linalg_svd(at::cat(outputs), false)).square();
  const double lost = 1 - squares.narrow(0, 0, 5).sum().item<double>() / squares.sum().item<double>();
  EXPECT_GT(lost, 0.1);
  EXPECT_NEAR(model.energy_lost, lost, 1e-6);  // values pass through float32
  ASSERT_EQ(model.outputs.size(), 4u);
  EXPECT_EQ(model.outputs[1].name, "blocks.0.wp2");
  EXPECT_TRUE(
      at::equal(imported(model, "blocks.2.wp1"), stage->parameters().find("blocks.2.wp1")->value.to(at::kFloat)));
}

}  // namespace
}  // namespace thinpipe
