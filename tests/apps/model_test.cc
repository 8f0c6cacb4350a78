// What was trained is used: eval, generate, export and import, by the real program on real files.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <sstream>

#include "apps/program.h"
#include "base/files.h"
#include "checkpoint/safetensors.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::expect_refused;
using test::Outcome;
using test::Program;
using test::write_file;
using Json = nlohmann::json;

// The last line of what a command printed.
Json json_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string line, last;
  while (std::getline(lines, line)) {
    if (!line.empty()) last = line;
  }
  return Json::parse(last, nullptr, false);
}

class Models : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
    test::write_tiny_run(program_);
    write_file(program_ / "text.txt", test::english(120, 7));
  }

  // A run of a few steps in the folder `run`.
  void train(const Arguments& settings, const std::string& run = "run") {
    Arguments all{"model.mode=subspace", "train.steps=20", "train.seq_len=32"};
    all.insert(all.end(), settings.begin(), settings.end());
    const auto outcome = program_.run(test::tiny_run(all, {"--run-dir", run}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }

  Json eval(Arguments arguments) {
    arguments.insert(arguments.begin(), "eval");
    arguments.push_back("--json");
    return json_of(program_.run(arguments));
  }

  Json generate(Arguments arguments) {
    arguments.insert(arguments.begin(), "generate");
    arguments.push_back("--json");
    return json_of(program_.run(arguments));
  }

  void must(const Arguments& arguments) {
    const auto outcome = program_.run(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }

  Program program_;
};

TEST_F(Models, EvalFindsTheValidationLossThatTrainingReported) {
  train({});
  std::istringstream lines(read_file(program_ / "run" / "metrics.jsonl").take());
  double reported = 0;
  for (std::string line; std::getline(lines, line);)
    reported = Json::parse(line).value("final_validation_loss", reported);
  const auto found = eval({"run"});
  EXPECT_NEAR(found.at("loss").get<double>(), reported, 1e-6 * reported);  // other batches: float32 sums differ
  EXPECT_NEAR(found.at("perplexity").get<double>(), std::exp(reported), 1e-4 * std::exp(reported));
}

TEST_F(Models, EvalOnATextCountsEveryByteAndTokenOnce) {
  train({});
  const auto found = eval({"run", "--text", "text.txt"});
  const auto bytes = static_cast<double>(fs::file_size(program_ / "text.txt"));
  EXPECT_EQ(found.at("text_bytes").get<double>(), bytes);
  const double nats = found.at("loss").get<double>() * found.at("tokens").get<double>();
  EXPECT_NEAR(found.at("bits_per_byte").get<double>(), nats / std::numbers::ln2 / bytes, 1e-9);
  // With half the context a model predicts worse or as well, and the tokens are the same.
  EXPECT_EQ(eval({"run", "--text", "text.txt", "--seq-len", "4"}).at("tokens"), found.at("tokens"));
}

TEST_F(Models, GenerationRepeatsWithItsSeedAndOnlyWithIt) {
  train({});
  const auto first = generate({"run", "--prompt", "The", "--seed", "3", "--max-tokens", "60"});
  EXPECT_EQ(first.at("text"), generate({"run", "--prompt", "The", "--seed", "3", "--max-tokens", "60"}).at("text"));
  EXPECT_NE(first.at("text"), generate({"run", "--prompt", "The", "--seed", "4", "--max-tokens", "60"}).at("text"));
  EXPECT_LE(first.at("tokens").get<int>(), 60);
  EXPECT_GT(first.at("tokens_per_s").get<double>(), 0);
  const auto greedy = generate({"run", "--prompt", "The", "--temperature", "0", "--seed", "1", "--max-tokens", "12"});
  EXPECT_EQ(greedy.at("text"),
            generate({"run", "--prompt", "The", "--temperature", "0", "--seed", "2", "--max-tokens", "12"}).at("text"));
  EXPECT_EQ(greedy.at("text"),
            generate({"run", "--prompt", "The", "--top-k", "1", "--seed", "2", "--max-tokens", "12"}).at("text"));
}

TEST_F(Models, TheTextStreamsBehindItsPromptAndTheSpeedGoesElsewhere) {
  train({});
  const auto outcome = program_.run({"generate", "run", "--prompt", "The stream", "--max-tokens", "20", "--seed", "5"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("The stream")) << outcome.out;
  EXPECT_NE(outcome.err.find("tokens/s"), std::string::npos) << outcome.err;
  const auto json = generate({"run", "--prompt", "The stream", "--max-tokens", "20", "--seed", "5"});
  EXPECT_EQ(outcome.out, "The stream" + json.at("text").get<std::string>() + "\n");
  write_file(program_ / "prompt.txt", "The stream");
  const auto piped = program_.run({"generate", "run", "--max-tokens", "20", "--seed", "5"},
                                  {.input = (program_ / "prompt.txt").string()});
  EXPECT_EQ(piped.out, outcome.out);
}

TEST_F(Models, APromptLoopRemembersUntilItIsToldToForget) {
  train({});
  write_file(program_ / "said.txt", "The\nand\n/reset\nThe\n/what\n/quit\nnever read\n");
  const auto outcome = program_.run({"generate", "run", "--interactive", "--temperature", "0", "--max-tokens", "6"},
                                    {.input = (program_ / "said.txt").string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("never read"), std::string::npos);
  EXPECT_NE(outcome.err.find("/what: the commands are"), std::string::npos);
  const auto alone = generate({"run", "--prompt", "The", "--temperature", "0", "--max-tokens", "6"});
  const auto answer = "> The" + alone.at("text").get<std::string>() + "\n";
  EXPECT_TRUE(outcome.out.starts_with(answer)) << outcome.out;
  EXPECT_NE(outcome.out.find(answer, 1), std::string::npos) << "forgotten, so the same again: " << outcome.out;
}

TEST_F(Models, AHuggingFaceFolderIsTheSameModel) {
  train({});
  must({"export", "run", "--format", "hf", "--out", "hf"});
  const auto of_run = eval({"run", "--text", "text.txt"}), of_folder = eval({"hf", "--text", "text.txt"});
  EXPECT_NEAR(of_folder.at("loss").get<double>(), of_run.at("loss").get<double>(), 1e-5);
  EXPECT_EQ(generate({"hf", "--prompt", "The", "--seed", "3"}).at("text"),
            generate({"run", "--prompt", "The", "--seed", "3"}).at("text"));
}

TEST_F(Models, ExportImportExportIsTheIdentityOnTensors) {
  train({});
  must({"export", "run", "--format", "hf", "--out", "hf"});
  must({"import", "hf", "--set", "data.corpus=corpus.txt", "--run-dir", "again"});
  must({"export", "again", "--format", "hf", "--out", "hf2"});
  EXPECT_EQ(read_file(program_ / "hf" / "model.safetensors").take(),
            read_file(program_ / "hf2" / "model.safetensors").take());
  must({"export", "run", "--format", "hf", "--out", "sharded", "--max-shard", "20KB"});
  EXPECT_TRUE(fs::exists(program_ / "sharded" / "model.safetensors.index.json"));
  must({"import", "sharded", "--set", "data.corpus=corpus.txt", "--run-dir", "third"});
  must({"export", "third", "--format", "hf", "--out", "hf3"});
  EXPECT_EQ(read_file(program_ / "hf" / "model.safetensors").take(),
            read_file(program_ / "hf3" / "model.safetensors").take());
}

TEST_F(Models, AnImportedSubspaceModelSaysWhatItLostAndComputesAsItSays) {
  train({});
  must({"export", "run", "--format", "hf", "--out", "hf"});
  // It was trained in eight directions, so eight lose nothing.
  const auto same = program_.run({"import", "hf", "--mode", "subspace", "--set", "subspace.rank=8", "--set",
                                  "data.corpus=corpus.txt", "--run-dir", "same"});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_NE(same.out.find("energy lost: 0.0000 %"), std::string::npos) << same.out;
  const double loss = eval({"hf", "--text", "text.txt"}).at("loss");
  EXPECT_NEAR(eval({"same", "--text", "text.txt"}).at("loss").get<double>(), loss, 1e-4);
  const auto fewer = program_.run({"import", "hf", "--mode", "subspace", "--set", "subspace.rank=4", "--set",
                                   "data.corpus=corpus.txt", "--run-dir", "fewer"});
  ASSERT_EQ(fewer.exit_code, 0) << fewer.err;
  EXPECT_EQ(fewer.out.find("energy lost: 0.0000 %"), std::string::npos) << fewer.out;
  EXPECT_NE(fewer.out.find("energy lost: "), std::string::npos) << fewer.out;
  EXPECT_GT(std::abs(eval({"fewer", "--text", "text.txt"}).at("loss").get<double>() - loss), 1e-4);
}

TEST_F(Models, AnImportedModelIsTrainedOn) {
  train({});
  must({"export", "run", "--format", "hf", "--out", "hf"});
  must({"import", "hf", "--mode", "subspace", "--run-dir", "on", "--set", "data.corpus=corpus.txt", "--set",
        "subspace.rank=8", "--set", "train.steps=4", "--set", "optim.lr=0.002", "--set", "train.microbatches=1",
        "--set", "link.rate=unlimited"});
  const double before = eval({"on", "--text", "corpus.txt"}).at("loss");
  must({"train", "--resume", "on"});
  EXPECT_LT(eval({"on", "--text", "corpus.txt"}).at("loss").get<double>(), before + 0.1);
  EXPECT_EQ(eval({"on", "--step", "0", "--text", "corpus.txt"}).at("loss").get<double>(), before);
}

TEST_F(Models, ACheckpointIsAModelToo) {
  const auto outcome =
      program_.run({"train", "tiny.toml", "--run-dir", "run", "--set", "checkpoint.every=1", "--set",
                    "checkpoint.keep_last=9", "--set", "checkpoint.mode=sync", "--set", "link.rate=unlimited"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const double first = eval({"run", "--step", "1", "--text", "text.txt"}).at("loss");
  const double last = eval({"run", "--step", "3", "--text", "text.txt"}).at("loss");
  EXPECT_NE(first, last);
  EXPECT_EQ(eval({"run", "--text", "text.txt"}).at("loss").get<double>(), last);
  EXPECT_EQ(eval({"run/checkpoints/step-00000001", "--text", "text.txt"}).at("loss").get<double>(), first);
  EXPECT_EQ(eval({"run/checkpoints/step-00000001/", "--text", "text.txt"}).at("loss").get<double>(), first);
  expect_refused(program_, {"eval", "run", "--step", "7"}, {"no checkpoint of step 7", "3, 2, 1"});
}

TEST_F(Models, WhatALlamaCannotExpressIsRefusedWithTheReason) {
  struct Case {
    Arguments settings;
    std::string named;
  };
  const std::vector<Case> cases{{{"model.positions=sinusoidal"}, "model.positions"},
                                {{"model.qk_norm=true"}, "model.qk_norm"},
                                {{"subspace.norm=split"}, "subspace.norm"},
                                {{"subspace.anchors=stage"}, "subspace.anchors"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto run = "run" + std::to_string(i);
    auto settings = cases[i].settings;
    settings.push_back("train.steps=1");
    train(settings, run);
    for (const std::string format : {"hf", "gguf"}) {
      expect_refused(program_, {"export", run, "--format", format, "--out", "out"}, {cases[i].named, "plain LLaMA"});
    }
    // It can still be used here.
    EXPECT_GT(eval({run, "--text", "text.txt"}).at("loss").get<double>(), 0);
    EXPECT_GT(generate({run, "--prompt", "The", "--max-tokens", "3"}).at("tokens").get<int>(), 0);
  }
}

TEST_F(Models, MistakesAreNamedInOneLine) {
  expect_refused(program_, {"eval", "nowhere"}, {"no model 'nowhere'", "thinpipe runs"});
  train({});
  must({"export", "run", "--format", "hf", "--out", "hf"});
  expect_refused(program_, {"eval", "hf"}, {"validation split", "--text"});
  expect_refused(program_, {"eval", "hf", "--step", "2"}, {"--step 2", "has no steps"});
  expect_refused(program_, {"eval", "run", "--step", "two"}, {"--step two", "whole number"});
  expect_refused(program_, {"eval", "run", "--text", "missing.txt"}, {"missing.txt"});
  write_file(program_ / "bad.txt", "not \xff utf-8");
  expect_refused(program_, {"eval", "run", "--text", "bad.txt"}, {"bad.txt"});
  write_file(program_ / "empty.txt", "");
  expect_refused(program_, {"eval", "run", "--text", "empty.txt"}, {"empty.txt", "holds no text"});
  expect_refused(program_, {"generate", "run", "--prompt", "x\xff"}, {"the prompt", "UTF-8", "byte 1"});
  expect_refused(program_, {"generate", "run", "--prompt", "x", "--temperature", "-1"}, {"--temperature"});
  expect_refused(program_, {"generate", "run", "--prompt", "x", "--top-p", "0"}, {"--top-p"});
  expect_refused(program_, {"generate", "run", "--prompt", "x", "--max-tokens", "0"}, {"--max-tokens"});
  expect_refused(program_, {"generate", "run", "--prompt", "x", "--interactive"}, {"--interactive"});
  expect_refused(program_, {"export", "run", "--format", "onnx"}, {"--format", "hf", "gguf"});
  expect_refused(program_, {"export", "run", "--format", "hf", "--type", "q8_0"}, {"q8_0", "f32, f16 or bf16"});
  expect_refused(program_, {"export", "run", "--format", "hf", "--out", "hf"}, {"hf"});
  expect_refused(program_, {"export", "run", "--format", "hf", "--max-shard", "big", "--out", "x"}, {"--max-shard"});
  expect_refused(program_, {"import", "nowhere"}, {"nowhere", "config.json"});
  expect_refused(program_, {"import", "hf", "--set", "model.d=64"}, {"[model]", "imported model"});
  expect_refused(program_, {"import", "hf", "--set", "model.mode=subspace"}, {"--mode"});
  expect_refused(program_, {"import", "hf", "--mode", "subspace", "--set", "subspace.norm=split"}, {"subspace.norm"});
  auto config = Json::parse(read_file(program_ / "hf" / "config.json").take());
  config["max_position_embeddings"] = 1;
  write_file(program_ / "hf" / "config.json", config.dump());
  expect_refused(program_, {"generate", "hf", "--prompt", "x"}, {"looks back 1 token"});
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  write_file(program_ / "hf" / "config.json", config.dump());
  expect_refused(program_, {"import", "hf"}, {"rope_scaling"});
  config.erase("rope_scaling");
  config["attention_bias"] = true;
  write_file(program_ / "hf" / "config.json", config.dump());
  expect_refused(program_, {"import", "hf"}, {"attention_bias"});
  fs::remove(program_ / "run" / "model.safetensors");
  expect_refused(program_, {"generate", "run", "--prompt", "x"}, {"run", "checkpoint"});
}

}  // namespace
}  // namespace thinpipe
