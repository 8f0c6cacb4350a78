// `thinpipe data` and `thinpipe tokenizer train`: normal use, interruptions and user errors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/running_program.h"
#include "base/files.h"
#include "base/sha256.h"
#include "text/compressed.h"
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

TEST_F(Data, PreparesListsAndInspects) {
  EXPECT_TRUE(has(run({"data", "list"}), "no prepared corpora"));
  const auto first = run({"data", "prepare", "corpus.txt", "--vocab", "300", "--val-fraction", "0.1", "--json"});
  const auto facts = last_line(first);
  const std::string id = facts["id"];
  for (const char* part : {"data: tokenizing\n", "corpus id: ", "documents: ", "bytes of text per token", "MB/s"}) {
    EXPECT_TRUE(has(first, part)) << part << " not in " << first;
  }
  EXPECT_TRUE(facts["made"]);
  EXPECT_EQ(facts["val_fraction"], 0.1);
  // Preparing again, as `train` does, finds the same corpus.
  const auto second = run({"data", "prepare", "corpus.txt", "--vocab", "300", "--val-fraction", "0.1"});
  EXPECT_TRUE(has(second, "was prepared already")) << second;

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
  }
  const auto shard = run({"data", "inspect", (folder / "val.bin").string(), "--json"});
  EXPECT_EQ(last_line(shard)["tokens"], facts["val"]["tokens"]);
  EXPECT_EQ(last_line(shard)["token_bytes"], 2);
  EXPECT_LT(last_line(shard)["greatest"].get<int>(), 300);
  EXPECT_TRUE(has(shard, fmt::format("the largest id is {}\n", last_line(shard)["greatest"].get<int>()))) << shard;
}

TEST_F(Data, ProgressOnATerminal_IsOneLineErasedAtTheEnd) {
  if (!test::has_pseudo_terminals()) GTEST_SKIP() << "no pseudo-terminals here";
  const auto outcome = program_.run({"data", "prepare", "corpus.txt", "--vocab", "300"}, {.terminal = true});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "\r\033[Kdata: tokenizing")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "\r\033[Kfolder:")) << outcome.out;
}

TEST_F(Data, HelpTeachesByExample) {
  for (const Arguments& command :
       {Arguments{"data"}, Arguments{"data", "prepare"}, Arguments{"data", "list"}, Arguments{"data", "inspect"},
        Arguments{"tokenizer"}, Arguments{"tokenizer", "train"}, Arguments{"bench", "data"}}) {
    auto arguments = command;
    arguments.push_back("--help");
    EXPECT_TRUE(has(run(arguments), fmt::format("Examples:\n  $ thinpipe {}", fmt::join(command, " ")))) << command[0];
  }
}

TEST_F(Data, Inspect_OfAMissingOrAmbiguousCorpus_IsRefused) {
  const auto facts = prepare();
  expect_refused(program_, {"data", "inspect", "abcd1234"}, {"'abcd1234' is not a prepared corpus", "data list"});
  expect_refused(program_, {"data", "inspect", "other.txt"}, {"'other.txt' is not a prepared corpus", "data list"});
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
  expect_refused(program_, {"data", "inspect", "missing.bin"}, {"missing.bin", "No such file"});
  fs::resize_file(folder / "val.bin", fs::file_size(folder / "val.bin") - 1);
  expect_refused(program_, {"data", "inspect", facts["id"].get<std::string>()}, {"val.bin: not a token shard"});
  EXPECT_TRUE(has(run({"data", "list"}), "DAMAGED: "));
}

TEST_F(Data, SettingsAreCheckedAsInAConfig) {
  run({"tokenizer", "train", "corpus.txt", "--vocab", "300", "--out", "a.model"});
  expect_refused(program_, {"data", "prepare", "corpus.txt", "--val-fraction", "2"}, {"data.val_fraction = 2"});
  expect_refused(program_, {"data", "prepare", "corpus.txt", "--vocab", "many"}, {"data.vocab = \"many\""});
  expect_refused(program_, {"data", "prepare", "missing.txt"}, {"data.corpus = \"missing.txt\""});
  expect_refused(program_, {"data", "prepare"}, {"CORPUS is required"});
  expect_refused(program_, {"data", "prepare", "corpus.txt", "--tokenizer", "a.model", "--vocab", "301"},
                 {"data.vocab = 301", "a.model has 300 pieces", "set data.vocab = 300"});
  expect_refused(program_, {"data", "prepare", "corpus.txt", "--tokenizer", "corpus.txt"},
                 {"--tokenizer: corpus.txt: not a complete sentencepiece model"});
  // --vocab defaults to the tokenizer's.
  EXPECT_EQ(prepare({"--tokenizer", "a.model"})["vocab"], 300);
  run({"tokenizer", "train", "corpus.txt", "--vocab", "298", "--out", "b.model"});
  expect_refused(program_, {"data", "inspect", "corpus.txt", "--tokenizer", "b.model"},
                 {"b.model: has 298 pieces", "of the corpus has 300"});
}

TEST_F(Data, CompressedTextAndAnotherField_GiveTheSameCorpus) {
  const std::string text = read_file(program_ / "corpus.txt").take();
  const std::string id = prepare()["id"];
  write_file(program_ / "corpus.txt.gz", test::gzip(text));
  write_file(program_ / "corpus.txt.zst", test::zstd(text));
  for (const auto* name : {"corpus.txt.gz", "corpus.txt.zst"}) {
    EXPECT_EQ(last_line(run({"data", "prepare", name, "--vocab", "300", "--json"}))["id"], id) << name;
  }
  write_file(program_ / "a.jsonl", test::jsonl(test::sixty_documents()));
  std::string lines = read_file(program_ / "a.jsonl").take();
  for (size_t at = 0; (at = lines.find("{\"text\"", at)) != std::string::npos;) lines.replace(at, 7, "{\"body\"");
  write_file(program_ / "b.jsonl.zst", test::zstd(lines));
  const auto plain = last_line(run({"data", "prepare", "a.jsonl", "--vocab", "300", "--json"}));
  const Arguments other{"data", "prepare", "b.jsonl.zst", "--vocab", "300", "--json", "--field", "body"};
  EXPECT_EQ(last_line(run(other))["id"], plain["id"]);
  expect_refused(program_, {"data", "prepare", "b.jsonl.zst"},
                 {"b.jsonl.zst: line 1", "without the field \"text\"; it has \"body\"", "set data.field"});
}

TEST_F(Data, TextThatIsRefused_TakesOneLine) {
  write_file(program_ / "a\nb.txt.gz", test::gzip(test::english(800, 1)).substr(0, 900));
  write_file(program_ / "bomb.txt.zst", test::zstd_bomb(1 << 16));
  write_file(program_ / "a.csv", "id,text\n");
  expect_refused(program_, {"data", "prepare", "a\nb.txt.gz"}, {"a\\u000ab.txt.gz: byte 900, after ", "is cut short"});
  expect_refused(program_, {"data", "prepare", "bomb.txt.zst"},
                 {"bomb.txt.zst: byte ", "100 times", "`zstd -d` first"});
  expect_refused(program_, {"data", "prepare", "a.csv"}, {"a.csv: is a table", "cat a.csv | python3", "data.field"});
}

TEST_F(Data, TrainedTokenizer_EqualsTheOneFromPreparation) {
  const auto said = run({"tokenizer", "train", "corpus.txt", "--vocab", "300", "--out", "a.model"});
  EXPECT_TRUE(has(said, "a.model: 300 pieces")) << said;
  EXPECT_EQ(prepare()["tokenizer_sha256"], sha256_hex(read_file(program_ / "a.model").take()));
}

TEST_F(Data, TokenizerTrain_WithBadArguments_NamesThem) {
  expect_refused(program_, {"tokenizer", "train", "corpus.txt", "--vocab", "300", "--out", "no/such/a.model"},
                 {"no/such/a.model", "No such file"});
  expect_refused(program_, {"tokenizer", "train", "corpus.txt", "--vocab", "60000", "--out", "b.model"},
                 {"data.vocab = 60000"});
  expect_refused(program_, {"tokenizer", "train", "missing.txt", "--out", "b.model"}, {"missing.txt"});
}

TEST_F(Data, InterruptedByCtrlC_KeepsNothing_AndTheSameCommandWorks) {
  // Waits in the middle because another process seems to prepare it.
  const fs::path folder = prepare()["folder"].get<std::string>();
  fs::remove_all(folder);
  std::optional<AtomicFolder> other = AtomicFolder::create(folder).take();
  test::RunningProgram running(program_, {"data", "prepare", "corpus.txt", "--vocab", "300"});
  running.wait_until("it waits", [&] { return has(running.out(), "data: waiting for another process"); });
  running.signal(SIGINT);
  other.reset();
  const auto outcome = running.wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_TRUE(has(outcome.out, "stopped; kept nothing\n")) << outcome.out;
  EXPECT_TRUE(fs::is_empty(program_.data() / "prepared"));
  EXPECT_TRUE(prepare()["made"]);
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
