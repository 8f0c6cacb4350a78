// `thinpipe data` and `thinpipe tokenizer` as a person uses them, kills them in the middle, and gets them wrong.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/running_program.h"
#include "base/sha256.h"
#include "text/prepare_setting.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::expect_refused;
using test::Program;
using test::write_file;

nlohmann::json last_line(const std::string& out) {
  const auto end = out.find_last_not_of('\n');
  const auto start = out.rfind('\n', end);
  return nlohmann::json::parse(out.substr(start + 1), nullptr, false);
}

class Data : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
    write_file(program_ / "corpus.txt", test::english(800, 1));
  }
  std::string run(const Arguments& arguments) {
    const auto outcome = program_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  nlohmann::json prepare(const Arguments& more = {"--vocab", "300"}) {
    Arguments arguments{"data", "prepare", "corpus.txt", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return last_line(run(arguments));
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  Program program_;
};

TEST_F(Data, PreparesListsInspectsAndVerifies) {
  EXPECT_TRUE(has(run({"data", "list"}), "no prepared corpora"));
  const auto first = run({"data", "prepare", "corpus.txt", "--vocab", "300", "--val-fraction", "0.1", "--json"});
  const auto facts = last_line(first);
  const std::string id = facts["id"];
  for (const char* part : {"data: tokenizing\n", "corpus id: ", "documents: ", "bytes of text per token", "MB/s"}) {
    EXPECT_TRUE(has(first, part)) << part << " not in " << first;
  }
  EXPECT_TRUE(facts["made"]);
  EXPECT_EQ(facts["val_fraction"], 0.1);
  // What `train` does before it trains finds the same corpus.
  const auto second = run({"data", "prepare", "corpus.txt", "--vocab", "300", "--val-fraction", "0.1"});
  EXPECT_TRUE(has(second, "was there already")) << second;

  const auto listed = run({"data", "list", "--json"});
  EXPECT_TRUE(has(listed, id.substr(0, 12))) << listed;
  EXPECT_EQ(last_line(listed)["prepared"][0]["source"], "corpus.txt");

  const fs::path folder = facts["folder"].get<std::string>();
  for (const auto& what : {id, id.substr(0, 6), std::string("corpus.txt"), folder.string()}) {
    const auto inspected = run({"data", "inspect", what, "--tokens", "20", "--json"});
    EXPECT_TRUE(has(inspected, "corpus id: " + id)) << inspected;
    const auto start = last_line(inspected)["train_start"];
    EXPECT_EQ(start["ids"].size(), 20U);
    EXPECT_TRUE(has(read_file(program_ / "corpus.txt").take(), start["text"])) << start;
    EXPECT_TRUE(has(run({"data", "verify", what}), ": fine: corpus " + id.substr(0, 12)));
  }
  const auto shard = run({"data", "inspect", (folder / "val.bin").string(), "--json"});
  EXPECT_TRUE(has(shard, " distinct, the greatest ")) << shard;
  EXPECT_EQ(last_line(shard)["tokens"], facts["val"]["tokens"]);
  EXPECT_TRUE(has(run({"data", "verify", (folder / "val.bin").string()}), ": a token shard of "));
}

TEST_F(Data, OnATerminalProgressIsOneLineThatIsGoneInTheEnd) {
  if (!test::has_pseudo_terminals()) GTEST_SKIP() << "no pseudo-terminals here";
  const auto outcome = program_.run({"data", "prepare", "corpus.txt", "--vocab", "300"}, {.terminal = true});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "\r\033[Kdata: tokenizing")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "\r\033[Kfolder: ")) << outcome.out;
}

TEST_F(Data, HelpTeachesByExample) {
  for (const Arguments& command :
       {Arguments{"data"}, Arguments{"data", "prepare"}, Arguments{"data", "list"}, Arguments{"data", "inspect"},
        Arguments{"data", "verify"}, Arguments{"tokenizer"}, Arguments{"tokenizer", "train"},
        Arguments{"tokenizer", "inspect"}, Arguments{"tokenizer", "encode"}, Arguments{"tokenizer", "decode"},
        Arguments{"tokenizer", "verify"}, Arguments{"bench", "data"}}) {
    auto arguments = command;
    arguments.push_back("--help");
    EXPECT_TRUE(has(run(arguments), fmt::format("Examples:\n  thinpipe {}", fmt::join(command, " ")))) << command[0];
  }
}

TEST_F(Data, WhatIsMeantMustBeThereAndOneThing) {
  const auto facts = prepare();
  expect_refused(program_, {"data", "inspect", "abcd1234"}, {"'abcd1234' is no prepared corpus", "data list"});
  expect_refused(program_, {"data", "verify", "other.txt"}, {"'other.txt' is no prepared corpus", "data list"});
  const auto corpus = open_prepared(facts["folder"].get<std::string>()).take();
  const auto [one, other] = test::make_ids_alike(corpus, program_.data());
  expect_refused(program_, {"data", "inspect", one.substr(0, 4)},
                 {"begins the ids of 2 prepared corpora", one.substr(0, 12), other.substr(0, 12)});
  expect_refused(program_, {"data", "inspect", "corpus.txt"}, {"is the source of 3 prepared corpora"});
}

TEST_F(Data, DamageIsNamedWithItsFile) {
  const auto facts = prepare();
  const fs::path folder = facts["folder"].get<std::string>();
  write_file(program_ / "none.bin", "hello");
  expect_refused(program_, {"data", "inspect", "none.bin"}, {"none.bin: not a token shard", "5 bytes"});
  expect_refused(program_, {"data", "verify", "none.bin"}, {"none.bin: not a token shard", "5 bytes"});
  expect_refused(program_, {"data", "verify", "missing.bin"}, {"missing.bin", "No such file"});
  auto bytes = read_file(folder / "val.bin").take();
  bytes[1030] = static_cast<char>(bytes[1030] ^ 1);
  write_file(folder / "val.bin", bytes);
  expect_refused(program_, {"data", "verify", "corpus.txt"}, {"val.bin: its SHA-256 is", "its manifest says"});
  write_file(folder / "val.bin", bytes.substr(0, bytes.size() - 1));
  const auto outcome = program_.run({"data", "verify", facts["id"].get<std::string>()});
  EXPECT_EQ(outcome.exit_code, 2);
  test::expect_one_line(outcome, {"val.bin: not a token shard"});
  EXPECT_TRUE(has(run({"data", "list"}), "DAMAGED: "));
}

TEST_F(Data, SettingsAreCheckedAsInAConfig) {
  run({"tokenizer", "train", "corpus.txt", "--vocab", "300", "--out", "a.model"});
  expect_refused(program_, {"data", "prepare", "corpus.txt", "--val-fraction", "2"}, {"data.val_fraction = 2"});
  expect_refused(program_, {"data", "prepare", "corpus.txt", "--vocab", "many"}, {"data.vocab = \"many\""});
  expect_refused(program_, {"data", "prepare", "missing.txt"}, {"data.corpus = \"missing.txt\""});
  expect_refused(program_, {"data", "prepare"}, {"corpus is required"});
  expect_refused(program_, {"data", "prepare", "corpus.txt", "--tokenizer", "a.model", "--vocab", "301"},
                 {"data.vocab = 301", "a.model has 300 pieces", "set data.vocab = 300"});
  expect_refused(program_, {"data", "prepare", "corpus.txt", "--tokenizer", "corpus.txt"},
                 {"--tokenizer: corpus.txt: not a complete sentencepiece model"});
  // Without --vocab it is the tokenizer's.
  EXPECT_EQ(prepare({"--tokenizer", "a.model"})["vocab"], 300);
  run({"tokenizer", "train", "corpus.txt", "--vocab", "298", "--out", "b.model"});
  expect_refused(program_, {"data", "inspect", "corpus.txt", "--tokenizer", "b.model"},
                 {"b.model: has 298 pieces", "was tokenised with 300"});
}

TEST_F(Data, ATokenizerIsTheOnePreparationWouldTrain) {
  const auto said = run({"tokenizer", "train", "corpus.txt", "--vocab", "300", "--out", "a.model"});
  EXPECT_TRUE(has(said, "a.model: 300 pieces")) << said;
  EXPECT_EQ(prepare()["tokenizer_sha256"], sha256_hex(read_file(program_ / "a.model").take()));
  const auto inspected = run({"tokenizer", "inspect", "a.model", "--json"});
  EXPECT_TRUE(has(inspected, "byte fallback: yes\nnormaliser: identity\n")) << inspected;
  EXPECT_EQ(last_line(inspected)["bos"], 1);
  EXPECT_EQ(last_line(inspected)["unknown"], 0);
}

TEST_F(Data, TextGoesThroughATokenizerAndBack) {
  run({"tokenizer", "train", "corpus.txt", "--vocab", "300", "--out", "a.model"});
  auto ids = run({"tokenizer", "encode", "a.model", "the river  \n\u00e9"});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), '\n'), 1);
  EXPECT_EQ(run({"tokenizer", "decode", "a.model", ids}), "the river  \n\u00e9");
  EXPECT_TRUE(has(run({"tokenizer", "encode", "a.model", "the\u00e9", "--pieces"}), "<0xC3> <0xA9>\n"));
  // Standard input is empty here.
  EXPECT_EQ(run({"tokenizer", "encode", "a.model"}), "\n");
  EXPECT_EQ(run({"tokenizer", "decode", "a.model", "-"}), "");
  const auto verified = run({"tokenizer", "verify", "a.model", "corpus.txt"});
  EXPECT_TRUE(has(verified, "a.model: fine: 1000 random texts and ")) << verified;
}

TEST_F(Data, WhatATokenizerCannotTakeIsNamed) {
  run({"tokenizer", "train", "corpus.txt", "--vocab", "300", "--out", "a.model"});
  expect_refused(program_, {"tokenizer", "encode", "a.model", "caf\xe9!"}, {"not UTF-8", "0xe9 at offset 3"});
  expect_refused(program_, {"tokenizer", "decode", "a.model", "5 300"},
                 {"token 300 at position 1 is not in the vocabulary of 300"});
  expect_refused(program_, {"tokenizer", "decode", "a.model", "5 -- 7x"}, {"'--' is no token id", "numbers"});
  expect_refused(program_, {"tokenizer", "decode", "a.model", "99999999999"}, {"'99999999999' is no token id"});
  expect_refused(program_, {"tokenizer", "inspect", "corpus.txt"}, {"not a complete sentencepiece model"});
  expect_refused(program_, {"tokenizer", "verify", "a.model", "missing.txt"}, {"CORPUS = \"missing.txt\""});
  expect_refused(program_, {"tokenizer", "train", "corpus.txt", "--vocab", "300", "--out", "no/such/a.model"},
                 {"no/such/a.model", "No such file"});
  // Found out before the corpus is read, and nothing half written where the work fails.
  expect_refused(program_, {"tokenizer", "train", "corpus.txt", "--vocab", "60000", "--out", "b.model"},
                 {"data.vocab = 60000"});
  expect_refused(program_, {"tokenizer", "train", "missing.txt", "--out", "b.model"}, {"missing.txt"});
}

// The text bytes that progress.json of the one unfinished preparation speaks of.
uint64_t durable_bytes(const fs::path& data) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(data / "prepared", none)) {
    const auto text = read_file(entry.path() / "progress.json");
    const auto state = text ? nlohmann::json::parse(text.value(), nullptr, false) : nlohmann::json();
    if (state.is_object()) {
      return state["train"]["text_bytes"].get<uint64_t>() + state["val"]["text_bytes"].get<uint64_t>();
    }
  }
  return 0;
}

TEST_F(Data, KilledAgainAndAgainItGoesOnAndMakesTheSame) {
  run({"tokenizer", "train", "corpus.txt", "--vocab", "300", "--out", "a.model"});
  std::string text;
  for (uint64_t seed = 0; text.size() < (26U << 20); ++seed) text += test::english(20'000, seed);
  write_file(program_ / "large.txt", text);
  const Arguments command{"data", "prepare", "large.txt", "--tokenizer", "a.model", "--json"};
  for (const auto& [signal, bytes] :
       {std::pair{SIGKILL, 1U}, std::pair{SIGKILL, 8U << 20}, std::pair{SIGINT, 16U << 20}}) {
    test::RunningProgram running(program_, command);
    // One that goes on has first found its place, and by then hears ctrl-C.
    running.wait_until("it has come so far", [&, least = bytes] {
      const bool at_work = least == 1 || has(running.out(), "finding the place");
      return (at_work && durable_bytes(program_.data()) >= least) || !running.running();
    });
    ASSERT_TRUE(running.running());
    running.signal(signal);
    const auto outcome = running.wait();
    EXPECT_EQ(outcome.exit_code, signal == SIGINT ? 130 : -1);
    EXPECT_EQ(has(outcome.out, "stopped; the same command goes on from here\n"), signal == SIGINT);
  }
  EXPECT_TRUE(has(run({"data", "list"}), "unfinished"));
  const auto last = run(command);
  EXPECT_TRUE(has(last, "data: finding the place where it was interrupted\n")) << last;
  DataConfig data = RunConfig{}.data;
  data.corpus = program_ / "large.txt";
  data.tokenizer = program_ / "a.model";
  data.vocab = 300;
  EXPECT_EQ(last_line(last)["id"], prepare_corpus(data, program_ / "undisturbed").id);
  EXPECT_FALSE(has(run({"data", "list"}), "unfinished"));
}

TEST_F(Data, PreparingTakesBoundedMemory) {
  const auto out = run({"bench", "data", "--size", "30MB", "--json"});
  fmt::print("{}", out);
  EXPECT_LT(last_line(out)["peak_resident_mb"].get<double>(), 500);
  EXPECT_GT(last_line(out)["tokens"].get<uint64_t>(), 5'000'000U);
  EXPECT_TRUE(fs::is_empty(program_.data() / "bench"));
  expect_refused(program_, {"bench", "data", "--size", "much"}, {"--size", "'much' is not a size"});
  expect_refused(program_, {"bench", "data", "--size", "1KB"}, {"--size 1KB", "at least 1MB"});
}

}  // namespace
}  // namespace thinpipe
