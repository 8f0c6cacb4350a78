// Uses trained models: eval, generate, export and import, with the real program on real files.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <numbers>
#include <sstream>

#include "apps/models.h"
#include "apps/running_program.h"
#include "base/files.h"
#include "store/checkpoints.h"
#include "store/safetensors.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::expect_refused;
using test::Json;
using test::write_file;

class Models : public test::TrainedModels {};

TEST_F(Models, EvalFindsTheValidationLossThatTrainingReported) {
  train({});
  std::istringstream lines(read_file(program_ / "run" / "metrics.jsonl").take());
  double reported = 0;
  for (std::string line; std::getline(lines, line);)
    reported = Json::parse(line).value("final_validation_loss", reported);
  const auto found = eval({"run"});
  EXPECT_NEAR(found.at("loss").get<double>(), reported, 1e-6 * reported);  // batches differ, so float32 sums do
  EXPECT_NEAR(found.at("perplexity").get<double>(), std::exp(reported), 1e-4 * std::exp(reported));
}

TEST_F(Models, EvalOnATextCountsEveryByteAndTokenOnce) {
  train({});
  const auto found = eval({"run", "--text", "text.txt"});
  const auto bytes = static_cast<double>(fs::file_size(program_ / "text.txt"));
  EXPECT_EQ(found.at("text_bytes").get<double>(), bytes);
  const double nats = found.at("loss").get<double>() * found.at("tokens").get<double>();
  EXPECT_NEAR(found.at("bits_per_byte").get<double>(), nats / std::numbers::ln2 / bytes, 1e-9);
  // With half the context a model predicts no better, and the tokens are the same.
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

TEST_F(Models, Generate_PrintsPromptAndTextToStdoutAndSpeedToStderr) {
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

TEST_F(Models, PromptLoop_RemembersUntilReset) {
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

TEST_F(Models, PromptLongerThanTheContext_OnlyItsEndIsRead) {
  train({});
  write_file(program_ / "long.txt", test::english(100, 3));
  const auto outcome = program_.run({"generate", "run", "--temperature", "0", "--max-tokens", "5", "--json"},
                                    {.input = (program_ / "long.txt").string()});
  EXPECT_NE(outcome.err.find("context is 32: using the last 15 tokens"), std::string::npos) << outcome.err;
  EXPECT_GT(test::json_of(outcome).at("prompt_tokens").get<int>(), 500);
  EXPECT_EQ(test::json_of(outcome).at("tokens"), 5);
}

TEST_F(Models, CtrlC_EndsTheAnswerOrAtThePromptTheProgram) {
  train({});
  ASSERT_EQ(::mkfifo((program_ / "typed").c_str(), 0600), 0);
  test::RunningProgram running(program_,
                               {"generate", "run", "--interactive", "--temperature", "0", "--max-tokens", "100000000"},
                               {}, {.input = (program_ / "typed").string()});
  std::ofstream typed(program_ / "typed");
  typed << "The stream" << std::endl;
  ASSERT_TRUE(running.wait_until("it answers", [&] { return running.out().size() > 300; }));
  running.signal(SIGINT);
  ASSERT_TRUE(running.wait_for_output("\n> "));
  const auto first = running.out();
  // On another pipe, which may be read later.
  ASSERT_TRUE(running.wait_until("it says so", [&] { return running.err().find("interrupted") != std::string::npos; }));
  // It remembers the earlier text.
  typed << "and" << std::endl;
  ASSERT_TRUE(running.wait_until("it answers again", [&] { return running.out().size() > first.size() + 300; }));
  running.signal(SIGINT);
  ASSERT_TRUE(running.wait_until("it asks again", [&] { return running.out().ends_with("\n> "); }));
  const auto said = first.substr(2, first.size() - 5) + "\nand";
  const auto expected = generate({"run", "--prompt", said, "--temperature", "0", "--max-tokens", "20"});
  EXPECT_EQ(running.out().substr(first.size()).find("and" + expected.at("text").get<std::string>()), 0u)
      << running.out().substr(first.size(), 200) << "\n"
      << expected;
  running.signal(SIGINT);
  EXPECT_EQ(running.wait().exit_code, -1) << "by the signal";
}

TEST_F(Models, EvalOnATerminal_NeverRepeatsAProgressLine) {
  if (!test::has_pseudo_terminals()) GTEST_SKIP() << "no pseudo-terminals here";
  train({});
  std::string documents;
  for (int i = 0; i < 600; ++i) documents += "{\"text\": \"The stream flows in a narrow bed and rests below.\"}\n";
  write_file(program_ / "many.jsonl", documents);
  const auto outcome = program_.run({"eval", "run", "--text", "many.jsonl"}, {.terminal = true});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::set<std::string> lines;
  size_t count = 0;
  const std::string clear = "\r\033[K";
  for (size_t at = outcome.out.find(clear); at != std::string::npos; ++count) {
    const size_t end = outcome.out.find(clear, at + 1);
    lines.insert(outcome.out.substr(at, end - at));
    at = end;
  }
  EXPECT_EQ(lines.size(), count);
  EXPECT_GE(count, 1u);  // how many more depends on how fast the machine is
  EXPECT_LT(count, 60u);
}

// Adds twenty tokens to the tokenizer's. One of the last two always has the largest logit.
void pad_vocabulary(const fs::path& folder) {
  auto config = Json::parse(read_file(folder / "config.json").take());
  config["vocab_size"] = 320;
  write_file(folder / "config.json", config.dump());
  const auto file = SafetensorsFile::open(folder / "model.safetensors").take();
  auto tensors = file.tensors();
  std::map<std::string, std::vector<float>> padded;
  for (auto& tensor : tensors) {
    if (tensor.name != "model.embed_tokens.weight" && tensor.name != "lm_head.weight") continue;
    auto& values = padded[tensor.name];
    values.resize(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    values.resize(320 * 32, 0.0f);
    for (size_t i = 0; i < 32; ++i) {
      values[318 * 32 + i] = 1000;
      values[319 * 32 + i] = -1000;
    }
    tensor.shape = {320, 32};
    tensor.bytes = std::as_bytes(std::span(values));
  }
  ASSERT_EQ(padded.size(), 2u);
  write_safetensors(folder / "padded", tensors).take();
  fs::rename(folder / "padded", folder / "model.safetensors");
}

TEST_F(Models, AModelMayHaveMoreTokensThanItsTokenizerHasPieces) {
  train({});
  must({"export", "run", "--format", "hf", "--out", "hf"});
  const Arguments greedy{"--prompt", "The", "--temperature", "0", "--max-tokens", "20"};
  const auto of = [&](const std::string& model) {
    Arguments arguments{model};
    arguments.insert(arguments.end(), greedy.begin(), greedy.end());
    return generate(arguments).at("text");
  };
  const auto expected = of("hf");
  pad_vocabulary(program_ / "hf");
  EXPECT_EQ(of("hf"), expected);
  EXPECT_GT(eval({"hf", "--text", "text.txt"}).at("loss").get<double>(), 0);
  must({"export", "hf", "--format", "gguf", "--out", "m.gguf"});
  must({"export", "hf", "--format", "hf", "--out", "again"});
  EXPECT_EQ(of("again"), expected);
  expect_refused(program_, {"import", "hf", "--set", "data.corpus=corpus.txt"}, {"vocab_size 320", "300 pieces"});
}

TEST_F(Models, Import_ThatCutsTheContext_SaysSo) {
  train({});
  must({"export", "run", "--format", "hf", "--out", "hf"});
  const auto whole = program_.run({"import", "hf", "--set", "data.corpus=corpus.txt", "--run-dir", "whole"});
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(whole.out.find("context"), std::string::npos) << whole.out;
  auto config = Json::parse(read_file(program_ / "hf" / "config.json").take());
  config["max_position_embeddings"] = 4096;
  write_file(program_ / "hf" / "config.json", config.dump());
  const auto cut = program_.run({"import", "hf", "--set", "data.corpus=corpus.txt", "--run-dir", "cut"});
  EXPECT_EQ(cut.exit_code, 0) << cut.err;
  EXPECT_NE(cut.out.find("context: 1024 of the model's 4096"), std::string::npos) << cut.out;
  EXPECT_NE(cut.out.find("--set train.seq_len=N"), std::string::npos) << cut.out;
}

TEST_F(Models, HuggingFaceFolder_IsTheSameModel) {
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
  // Large enough for more than one shard.
  train({"model.d=128", "train.steps=1"}, "larger");
  must({"export", "larger", "--format", "hf", "--out", "one"});
  must({"export", "larger", "--format", "hf", "--out", "sharded", "--max-shard", "1MB"});
  EXPECT_TRUE(fs::exists(program_ / "sharded" / "model.safetensors.index.json"));
  must({"import", "sharded", "--set", "data.corpus=corpus.txt", "--run-dir", "third"});
  must({"export", "third", "--format", "hf", "--out", "hf3"});
  EXPECT_EQ(read_file(program_ / "one" / "model.safetensors").take(),
            read_file(program_ / "hf3" / "model.safetensors").take());
}

TEST_F(Models, ImportAsSubspace_ReportsTheEnergyItLost) {
  train({});
  must({"export", "run", "--format", "hf", "--out", "hf"});
  // It was trained with rank 8, so rank 8 loses nothing.
  const auto same = program_.run({"import", "hf", "--mode", "subspace", "--set", "subspace.rank=8", "--set",
                                  "data.corpus=corpus.txt", "--run-dir", "same"});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_NE(same.out.find("energy lost: 0.0000 %"), std::string::npos) << same.out;
  const double loss = eval({"hf", "--text", "text.txt"}).at("loss");
  EXPECT_NEAR(eval({"same", "--text", "text.txt"}).at("loss").get<double>(), loss, 1e-4);
  const auto all = program_.run({"import", "hf", "--mode", "subspace", "--set", "subspace.rank=32", "--set",
                                 "data.corpus=corpus.txt", "--run-dir", "all"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_NE(all.out.find("energy lost: 0.0000 %"), std::string::npos) << all.out;
  const auto fewer = program_.run({"import", "hf", "--mode", "subspace", "--set", "subspace.rank=4", "--set",
                                   "data.corpus=corpus.txt", "--run-dir", "fewer"});
  ASSERT_EQ(fewer.exit_code, 0) << fewer.err;
  EXPECT_EQ(fewer.out.find("energy lost: 0.0000 %"), std::string::npos) << fewer.out;
  EXPECT_NE(fewer.out.find("energy lost: "), std::string::npos) << fewer.out;
  EXPECT_GT(std::abs(eval({"fewer", "--text", "text.txt"}).at("loss").get<double>() - loss), 1e-4);
}

TEST_F(Models, ImportedModel_CanBeTrainedFurther) {
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
  const auto folder = checkpoint_of_step(program_ / "run", 1).take().files.front().parent_path().string();
  EXPECT_EQ(eval({folder, "--text", "text.txt"}).at("loss").get<double>(), first);
  EXPECT_EQ(eval({folder + "/", "--text", "text.txt"}).at("loss").get<double>(), first);
  expect_refused(program_, {"eval", "run", "--step", "7"}, {"no checkpoint of step 7", "1, 2, 3"});
}

TEST_F(Models, Export_OfWhatALlamaCannotExpress_IsRefusedWithTheReason) {
  struct Case {
    Arguments settings;
    std::string named;
  };
  const std::vector<Case> cases{{{"model.positions=sinusoidal"}, "model.positions"},
                                {{"model.qk_norm=true"}, "model.qk_norm"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto run = "run" + std::to_string(i);
    auto settings = cases[i].settings;
    settings.push_back("train.steps=1");
    train(settings, run);
    for (const std::string format : {"hf", "gguf"}) {
      expect_refused(program_, {"export", run, "--format", format, "--out", "out"}, {cases[i].named, "plain LLaMA"});
    }
    // It still works here.
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
  expect_refused(program_, {"eval", "run", "--text", "missing.txt"}, {"--text = \"missing.txt\"", "No such file"});
  fs::create_directory(program_ / "nothing");
  expect_refused(program_, {"eval", "run", "--text", "nothing"}, {"--text: folder nothing", "has no files"});
  expect_refused(program_, {"eval", "run", "--text", "/dev/null"},
                 {"--text = \"/dev/null\"", "neither a file nor a folder"});
  for (const std::string device : {"foo", "cpu:7", "cuda:x"}) {
    expect_refused(program_, {"eval", "run", "--device", device}, {"--device " + device, "\"cuda:N\""});
    expect_refused(program_, {"generate", "run", "--prompt", "x", "--device", device}, {"--device " + device});
  }
  write_file(program_ / "bad.txt", "not \xff utf-8");
  expect_refused(program_, {"eval", "run", "--text", "bad.txt"}, {"bad.txt"});
  write_file(program_ / "empty.txt", "");
  expect_refused(program_, {"eval", "run", "--text", "empty.txt"}, {"empty.txt", "is empty"});
  expect_refused(program_, {"generate", "run", "--prompt", "x\xff"}, {"the prompt", "UTF-8", "byte 1"});
  expect_refused(program_, {"generate", "run", "--prompt", "x", "--temperature", "-1"}, {"--temperature"});
  expect_refused(program_, {"generate", "run", "--prompt", "x", "--top-p", "0"}, {"--top-p"});
  expect_refused(program_, {"generate", "run", "--prompt", "x", "--max-tokens", "0"}, {"--max-tokens"});
  expect_refused(program_, {"generate", "run", "--prompt", "x", "--interactive"}, {"--interactive"});
  expect_refused(program_, {"generate", "run", "--interactive", "--json"}, {"--json", "--prompt"});
  expect_refused(program_, {"export", "run", "--format", "onnx"}, {"--format", "hf", "gguf"});
  expect_refused(program_, {"export", "run", "--format", "hf", "--type", "q8_0"}, {"q8_0", "f32, f16 or bf16"});
  expect_refused(program_, {"export", "run", "--format", "hf", "--out", "hf"}, {"hf"});
  expect_refused(program_, {"export", "run", "--format", "hf", "--max-shard", "big", "--out", "x"}, {"--max-shard"});
  expect_refused(program_, {"export", "run", "--format", "hf", "--max-shard", "0", "--out", "x"},
                 {"--max-shard 0", "1MB"});
  expect_refused(program_, {"export", "run", "--format", "hf", "--max-shard", "999KB", "--out", "x"}, {"1MB or more"});
  expect_refused(program_, {"export", "run", "--format", "gguf", "--max-shard", "5GB", "--out", "x"},
                 {"--max-shard", "--format hf"});
  expect_refused(program_, {"import", "nowhere"}, {"nowhere", "config.json"});
  expect_refused(program_, {"import", "hf", "--set", "model.d=64"}, {"[model]", "imported model"});
  expect_refused(program_, {"import", "hf", "--set", "model.mode=subspace"}, {"--mode"});
  auto config = Json::parse(read_file(program_ / "hf" / "config.json").take());
  config["max_position_embeddings"] = 1;
  write_file(program_ / "hf" / "config.json", config.dump());
  expect_refused(program_, {"generate", "hf", "--prompt", "x"}, {"has a context of 1 token"});
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
