// What `thinpipe export` writes. GGUF: the requested types, the run's name, and a file for which the real llama.cpp
// finds the same perplexity as `thinpipe eval`. Hugging Face: a folder with its own code for a model with token tables.
#include <gtest/gtest.h>

#include <cmath>

#include "apps/models.h"
#include "base/files.h"
#include "models/gguf_file.h"
#include "models/llama_cpp.h"
#include "models/python_torch.h"
#include "text/tokenizer.h"

namespace thinpipe {
namespace {

using test::Arguments;
using test::GgufFile;
using test::Json;
using test::LlamaCpp;

// The format's numbers: general.file_type and a matrix's type.
struct TypeNumbers {
  std::string option;
  uint32_t file_type;
  uint32_t tensor_type;
};

class Exports : public test::TrainedModels {
 protected:
  // Widths that q8_0 supports.
  void train_wide(const std::string& run) { train({"model.mlp_width=96"}, run); }

  void expect_types(const GgufFile& file, const TypeNumbers& expected, const std::string& name) {
    EXPECT_EQ(file.values.at("general.name"), name);
    EXPECT_EQ(file.values.at("general.file_type"), expected.file_type);
    EXPECT_EQ(file.values.contains("general.quantization_version"), expected.option == "q8_0");
    EXPECT_EQ(file.tensors.size(), 2U * 9 + 3);  // two blocks of nine tensors; embedding, norm, head
    for (const auto& [tensor_name, tensor] : file.tensors) {
      EXPECT_EQ(tensor.type, tensor.lengths.size() == 1 ? 0 : expected.tensor_type) << tensor_name;
    }
  }
};

TEST_F(Exports, GgufFile_HasTheRequestedTypeAndTheRunsName) {
  train_wide("brook");
  const std::vector<TypeNumbers> types{{"f32", 0, 0}, {"f16", 1, 1}, {"bf16", 32, 30}, {"q8_0", 7, 8}};
  for (const auto& type : types) {
    SCOPED_TRACE(type.option);
    const auto out = type.option + ".gguf";
    const auto outcome = program_.run({"export", "brook", "--format", "gguf", "--type", type.option, "--out", out});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("as GGUF, " + type.option), std::string::npos) << outcome.out;
    expect_types(GgufFile(read_file(program_ / out).take()), type, "brook");
  }
}

TEST_F(Exports, GgufFile_WithoutOptions_IsF16AndNamedAfterTheRun) {
  train_wide("brook");
  must({"export", "brook", "--format", "gguf"});
  expect_types(GgufFile(read_file(program_ / "brook.gguf").take()), {"f16", 1, 1}, "brook");
}

TEST_F(Exports, MissingParentFolders_AreCreated) {
  train_wide("brook");
  must({"export", "brook", "--format", "gguf", "--out", "for/others/m.gguf"});
  must({"export", "brook", "--format", "hf", "--out", "for/more/hf"});
  EXPECT_TRUE(std::filesystem::exists(program_ / "for/others/m.gguf"));
  EXPECT_TRUE(std::filesystem::exists(program_ / "for/more/hf/config.json"));
}

TEST_F(Exports, ModelsWithTokenTables_BecomeAFolderWithCodeAndNoGgufFile) {
  const std::vector<std::pair<std::string, bool>> settings{{"model.recipe=fast", true},
                                                           {"subspace.anchors=stage", false}};
  for (const auto& [setting, has_previous] : settings) {
    SCOPED_TRACE(setting);
    const std::string run = has_previous ? "fast" : "stage", folder = run + "-hf";
    train({setting, "train.steps=1"}, run);
    must({"export", run, "--format", "hf", "--out", folder});
    EXPECT_TRUE(std::filesystem::exists(program_ / folder / "modeling_thinpipe.py"));
    const auto config = Json::parse(read_file(program_ / folder / "config.json").take());
    EXPECT_EQ(config.at("previous_token_tables"), has_previous);
    test::expect_refused(program_, {"export", run, "--format", "gguf", "--out", "out"},
                         {"subspace.anchors = \"stage\"", "--format hf", "model.recipe = \"llama\""});
    test::expect_refused(program_, {"eval", folder}, {"model_type is \"thinpipe\"", "needs \"llama\""});
  }
}

TEST_F(Exports, FolderOfAFastModel_ContinuesAPromptAsTheRunDoes) {
  test::require_python_torch();
  if (IsSkipped() || HasFatalFailure()) return;
  train({"model.recipe=fast", "model.blocks=3", "pipeline.stages=2"}, "brook");
  must({"export", "brook", "--format", "hf", "--out", "hf"});
  const auto tokenizer = Tokenizer::load(program_ / "hf/tokenizer.model").take();
  auto prompt = tokenizer.encode("The stream");
  prompt.insert(prompt.begin(), tokenizer.bos());
  const auto answers = test::PythonTorch::get().run({{{"folder", (program_ / "hf").string()},
                                                      {"ids", {prompt}},
                                                      {"mask", nullptr},
                                                      {"labels", nullptr},
                                                      {"dtype", "float32"},
                                                      {"new_tokens", 12}}});
  ASSERT_TRUE(answers.is_array()) << answers;
  const auto continued = answers[0]["text"][0].get<std::vector<int32_t>>();
  const auto ours = generate({"brook", "--prompt", "The stream", "--temperature", "0", "--max-tokens", "12"});
  EXPECT_EQ(tokenizer.decode(continued).take(), "The stream" + ours.at("text").get<std::string>());
}

class ExportsInLlamaCpp : public Exports {
 protected:
  void SetUp() override {
    Exports::SetUp();
    if (!IsSkipped()) test::require_llama_cpp();
  }

  Json ask(const std::string& gguf, const Json& tasks) {
    auto answer = LlamaCpp::get().run(program_ / gguf, tasks);
    if (answer.contains("error")) throw UserError(answer["error"].get<std::string>());
    return answer;
  }
};

TEST_F(ExportsInLlamaCpp, TheFileContinuesAPromptAsTheRunDoes) {
  train_wide("brook");
  must({"export", "brook", "--format", "gguf", "--type", "f32", "--out", "m.gguf"});
  const auto opened = ask("m.gguf", {{"tokenize", {"The stream"}}});
  Json prompt = opened.at("tokens").at(0);
  prompt.insert(prompt.begin(), opened.at("bos"));
  const auto generated = ask("m.gguf", {{"generate", {{{"prompt", prompt}, {"tokens", 12}}}}, {"detokenize", true}});
  const auto ours = generate({"brook", "--prompt", "The stream", "--temperature", "0", "--max-tokens", "12"});
  EXPECT_EQ(generated.at("texts").at(0), ours.at("text"));
}

TEST_F(ExportsInLlamaCpp, TheFileHasThePerplexityThatEvalPrints) {
  train_wide("brook");
  must({"export", "brook", "--format", "gguf", "--type", "f32", "--out", "m.gguf"});
  const auto found = eval({"brook", "--text", "text.txt"});
  const auto text = read_file(program_ / "text.txt").take();
  const auto opened = ask("m.gguf", {{"tokenize", {text}}});
  auto tokens = opened.at("tokens").at(0).get<std::vector<int32_t>>();
  tokens.insert(tokens.begin(), opened.at("bos").get<int32_t>());
  ASSERT_EQ(found.at("tokens"), tokens.size() - 1);
  // The same windows: a window's last token is the next one's first.
  const auto length = found.at("seq_len").get<size_t>();
  std::vector<std::vector<int32_t>> windows;
  for (size_t first = 0; first + 1 < tokens.size(); first += length) {
    const auto end = std::min(tokens.size(), first + length + 1);
    windows.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(first),
                         tokens.begin() + static_cast<std::ptrdiff_t>(end));
  }
  double nats = 0;
  const auto answer = ask("m.gguf", {{"sequences", windows}});
  for (const auto& window : answer.at("sequences")) {
    for (const auto& position : window) nats -= position.at("next").is_null() ? 0 : position.at("next").get<double>();
  }
  const double ours = found.at("perplexity"), theirs = std::exp(nats / static_cast<double>(tokens.size() - 1));
  fmt::print("perplexity {:.4f}, llama.cpp's {:.4f}, over {} tokens\n", ours, theirs, tokens.size() - 1);
  EXPECT_NEAR(theirs / ours, 1, 0.005);
}

}  // namespace
}  // namespace thinpipe
