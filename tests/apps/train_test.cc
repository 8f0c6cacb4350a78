// `thinpipe train` from a config to its run folder: what a good run leaves and prints, and what a failed one leaves.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/program.h"
#include "base/files.h"
#include "config/config_file.h"
#include "store/safetensors.h"
#include "text/shards.h"

namespace thinpipe {
namespace {

using test::expect_refused;
using test::lines_of;
using test::Program;
using test::tiny_run;
using test::write_file;
using Json = nlohmann::json;

class Train : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
    test::write_tiny_run(program_);
  }

  std::filesystem::path the_folder_in(const std::string& parent) const {
    std::filesystem::directory_iterator entries(program_.data() / parent);
    const auto folder = entries->path();
    EXPECT_EQ(++entries, std::filesystem::directory_iterator()) << "more than one folder in " << parent;
    return folder;
  }

  Program program_;
};

// Three steps and the final line, numbered, finite.
void expect_three_steps(const std::vector<Json>& lines) {
  ASSERT_EQ(lines.size(), 4U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i].at("step"), i + 1);
    EXPECT_TRUE(lines[i].at("loss").is_number());  // non-finite numbers are written as null
    EXPECT_EQ(lines[i].at("tokens"), (i + 1) * 4 * 16);
  }
  EXPECT_TRUE(lines[3].at("final_validation_loss").is_number());
}

// Times are kept apart from the metrics, which are the same every time.
void expect_three_times(const std::vector<Json>& lines) {
  ASSERT_EQ(lines.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i].at("step"), i + 1);
    EXPECT_GT(lines[i].at("seconds"), 0.0);
    EXPECT_EQ(lines[i].at("stages").size(), 2U);
  }
}

TEST_F(Train, Run_LeavesACompleteFolderAndPlainLinesInAPipe) {
  for (const std::string mode : {"dense", "subspace"}) {
    SCOPED_TRACE(mode);
    const std::vector<std::string> settings{"model.mode=" + mode, "pipeline.stages=2"};
    const auto outcome = program_.run(tiny_run(settings, {"--run-dir", mode}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(outcome.out.find_first_of("\r\033"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("\nstep 3/3  loss "), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("\nvalidation loss "), std::string::npos) << outcome.out;

    const auto run = program_ / mode;
    // A subspace model has made its token table, and its config names it.
    auto expected = load_config(program_ / "tiny.toml", settings);
    const auto found = load_config(run / "config.toml");
    if (mode == "subspace") {
      EXPECT_EQ(expected.model.table, kTableFromCorpus);
      expected.model.table = found.model.table;
      EXPECT_TRUE(std::filesystem::exists(run / "tables" / (found.model.table + ".safetensors")));
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run), {}), mode == "subspace" ? 8 : 7);
    EXPECT_EQ(found, expected);
    const auto metrics = lines_of(run / "metrics.jsonl");
    expect_three_steps(metrics);
    expect_three_times(lines_of(run / "timing.jsonl"));
    EXPECT_EQ(metrics[0].at("bytes").size(), 1U);  // one cut
    const auto model = SafetensorsFile::open(run / "model.safetensors");
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(model.value().find("basis") != nullptr, mode == "subspace");
  }
}

TEST_F(Train, SavedConfig_ReproducesTheRun) {
  ASSERT_EQ(program_.run(tiny_run({"model.mode=subspace", "subspace.update_every=2", "pipeline.stages=2"})).exit_code,
            0);
  const auto first = the_folder_in("runs");
  const auto again = program_.run({"train", (first / "config.toml").string(), "--in-process", "--run-dir", "again"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  for (const char* file : {"config.toml", "metrics.jsonl", "model.safetensors"}) {
    EXPECT_EQ(read_file(first / file).take(), read_file(program_ / "again" / file).take()) << file << " differs";
  }
}

TEST_F(Train, ModelThatIsNoPlainLlama_IsNamedBeforeTheRunBegins) {
  const std::string note = "note: this model is not a plain LLaMA: subspace.anchors = \"stage\"";
  const auto fast = program_.run(tiny_run({"model.mode=subspace", "model.recipe=fast"}));
  ASSERT_EQ(fast.exit_code, 0) << fast.err;
  EXPECT_LT(fast.out.find(note), fast.out.find("run: ")) << fast.out;
  EXPECT_EQ(program_.run(tiny_run({"model.mode=subspace"})).out.find("note: "), std::string::npos);
}

TEST_F(Train, RewritesOneLineOnATerminal) {
  if (!test::has_pseudo_terminals()) GTEST_SKIP() << "no pseudo-terminals here (is /dev/pts mounted?)";
  const auto outcome = program_.run(tiny_run(), {.terminal = true});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\r\033[Kdata: tokenizing"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\r\033[Kstep 3/3  loss "), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("\nstep 3/3"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\ntrained "), std::string::npos) << outcome.out;  // the last step stays visible
}

TEST_F(Train, ExistingRun_IsNotOverwritten) {
  ASSERT_EQ(program_.run(tiny_run({}, {"--run-dir", "run"})).exit_code, 0);
  const auto metrics = read_file(program_ / "run/metrics.jsonl").take();
  expect_refused(program_, tiny_run({}, {"--run-dir", "run"}), {"run already holds a run", "give another folder"});
  EXPECT_EQ(read_file(program_ / "run/metrics.jsonl").take(), metrics);
  // A user's own config is not overwritten either.
  write_file(program_ / "mine/config.toml", "[model]\n");
  expect_refused(program_, tiny_run({}, {"--run-dir", "mine"}), {"mine already holds", "config.toml"});
  EXPECT_EQ(read_file(program_ / "mine/config.toml").take(), "[model]\n");
  expect_refused(program_, tiny_run({}, {"--run-dir", "corpus.txt"}), {"cannot create folder corpus.txt"});
}

TEST_F(Train, PreparesADamagedCorpusAgain) {
  ASSERT_EQ(program_.run(tiny_run()).exit_code, 0);
  const auto prepared = the_folder_in("prepared");
  const auto whole = read_file(prepared / "train.bin").take();
  for (const char* file : {"train.bin", "manifest.json", "tokenizer.model"}) {
    SCOPED_TRACE(file);
    std::filesystem::resize_file(prepared / file, std::filesystem::file_size(prepared / file) / 2);
    const auto outcome = program_.run(tiny_run());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("preparing the corpus again"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(file), std::string::npos) << outcome.err;
    EXPECT_EQ(read_file(the_folder_in("prepared") / "train.bin").take(), whole);
  }
}

TEST_F(Train, RefusesATokenThatIsNotInTheVocabulary) {
  ASSERT_EQ(program_.run(tiny_run()).exit_code, 0);
  const auto shard = the_folder_in("prepared") / "train.bin";
  auto bytes = read_file(shard).take();
  bytes.replace(kShardHeaderBytes + 2 * 7, 2, "\xff\xff");
  write_file(shard, bytes);
  expect_refused(program_, tiny_run(), {"train.bin", "token 65535 at position 7", "vocabulary of 300"});
}

TEST_F(Train, ModelTooLargeForMemory_IsReported) {
  constexpr rlim_t kEnoughForTheLibraries = rlim_t{4} << 30;
  expect_refused(program_, tiny_run({"model.d=65536"}, {"--run-dir", "run"}), {"this run needs up to", "model.d"},
                 {.address_space = kEnoughForTheLibraries});
  EXPECT_EQ(program_.run(tiny_run({}, {"--run-dir", "run"})).exit_code, 0) << "the folder must be free again";
}

TEST_F(Train, NonFiniteFinalLoss_FailsAndKeepsTheRun) {
  // A decay of -10^4 a step: queries times keys become infinite within six steps; each step before is finite.
  const std::vector<std::string> settings{"optim.kind=muon", "optim.lr=100",        "optim.weight_decay=100",
                                          "optim.warmup=0",  "optim.adamw_lr=1e-6", "optim.schedule=constant"};
  for (const bool in_process : {true, false}) {
    SCOPED_TRACE(in_process ? "in process" : "as processes");
    const std::string run = in_process ? "one" : "several";
    auto arguments = tiny_run(settings, {"--steps", "7", "--run-dir", run});
    if (!in_process) std::erase(arguments, "--in-process");
    const auto outcome = program_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    test::expect_one_line(outcome, {"validation loss", "not finite", "optim.lr (100)"});
    EXPECT_EQ(outcome.out.find("\nvalidation loss"), std::string::npos) << outcome.out;
    EXPECT_TRUE(lines_of(program_ / run / "metrics.jsonl").back().at("final_validation_loss").is_null());
    EXPECT_TRUE(std::filesystem::exists(program_ / run / "model.safetensors"));
  }
}

TEST_F(Train, DiskFullBeforeTheFirstStep_LeavesTheFolderEmpty) {
  // Room for the config only; for the tokenizer too; for all but the metrics.
  const std::vector<std::pair<size_t, std::string>> disks{
      {4096, "tokenizer.model"}, {12288, "corpus_id"}, {16384, "metrics.jsonl"}};
  for (const auto& [bytes, lacking] : disks) {
    SCOPED_TRACE(bytes);
    const test::SmallDisk disk(bytes);
    if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
    const auto run = disk.folder() / "run";
    expect_refused(program_, tiny_run({}, {"--run-dir", run.string()}), {lacking, "No space left on device"});
    EXPECT_FALSE(std::filesystem::exists(run));
    std::filesystem::create_directory(run);
    expect_refused(program_, tiny_run({}, {"--run-dir", run.string()}), {lacking, "No space left on device"});
    EXPECT_TRUE(std::filesystem::is_empty(run));
  }
}

TEST_F(Train, DiskFull_LeavesNoEmptyRunAndNoPartialModel) {
  const test::SmallDisk disk(32768);
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  const auto run = disk.folder() / "run";
  // Room for the config, the tokenizer, the metrics and the times, but not the weights.
  const auto outcome = program_.run(tiny_run({}, {"--run-dir", run.string()}));
  EXPECT_EQ(outcome.exit_code, 2);
  test::expect_one_line(outcome, {"model.safetensors", "No space left on device"});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run), {}), 5);
  expect_three_steps(lines_of(run / "metrics.jsonl"));

  std::filesystem::remove_all(run);
  write_file(disk.folder() / "ballast", std::string(32768, 'x'));
  expect_refused(program_, tiny_run({}, {"--run-dir", run.string()}), {"config.toml", "No space left on device"});
  EXPECT_FALSE(std::filesystem::exists(run));
  std::filesystem::create_directory(run);
  expect_refused(program_, tiny_run({}, {"--run-dir", run.string()}), {"config.toml", "No space left on device"});
  EXPECT_TRUE(std::filesystem::is_empty(run));
}

TEST_F(Train, FullDataDirectory_LeavesNoPartialCorpus) {
  const test::SmallDisk disk(32768);
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  const Program on_disk(disk.folder().path());
  const auto corpus = "data.corpus=" + (program_ / "corpus.txt").string();
  expect_refused(on_disk, {"train", (program_ / "tiny.toml").string(), "--in-process", "--set", corpus},
                 {"train.bin", "No space left on device"});
  write_file(disk.folder() / "ballast", std::string(32768, 'x'));
  std::filesystem::remove_all(on_disk.data());
  expect_refused(on_disk, {"train", (program_ / "tiny.toml").string(), "--in-process", "--set", corpus},
                 {"tokenizer.model", "No space left on device"});
}

}  // namespace
}  // namespace thinpipe
