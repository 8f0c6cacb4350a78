#include "pipeline/run_folder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "config/config_file.h"
#include "pipeline/run_corpus.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

TEST(RunFolder, HoldsTheConfigAsUsedAndAppendsMetrics) {
  const test::ScratchFolder temp;
  RunConfig config;
  config.model.d = 128;
  auto folder = RunFolder::create(temp.path() / "run", config).take();
  folder.metrics().append({{"step", 1}, {"loss", 2.5}}).take();
  folder.metrics().append({{"step", 2}}).take();
  EXPECT_EQ(read_file(temp.path() / "run/metrics.jsonl").take(), "{\"step\":1,\"loss\":2.5}\n{\"step\":2}\n");
  EXPECT_EQ(load_config(temp.path() / "run/config.toml").model.d, 128);
}

TEST(RunFolder, RefusesAFolderThatHoldsARun) {
  const test::ScratchFolder temp;
  RunFolder::create(temp.path() / "run", {}).take().metrics().append({{"step", 1}}).take();
  const auto again = RunFolder::create(temp.path() / "run", {});
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.error().message.find("already holds a run"), std::string::npos);
}

PreparedCorpus corpus_with(const std::filesystem::path& tokenizer) {
  PreparedCorpus corpus;
  corpus.tokenizer = tokenizer;
  corpus.id = std::string(64, 'a');
  return corpus;
}

TEST(RunFolder, RunThatEndsBeforeItsFirstLine_LeavesNothing) {
  const test::ScratchFolder temp;
  write_file_atomically(temp / "t.model", "pieces").take();
  {
    auto folder = RunFolder::create(temp / "run", {}).take();
    keep_corpus(folder.path(), corpus_with(temp / "t.model")).take();
    folder.timing().append({{"step", 1}}).take();
    make_directories(folder.path() / "tables").take();
    write_file_atomically(folder.path() / "tables/t", "rows").take();
    const RunFolder moved = std::move(folder);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(temp / "run"), {}), 6);
  }
  EXPECT_FALSE(std::filesystem::exists(temp / "run"));
}

TEST(RunFolder, KeepsEarlierFilesAndARunWithALine) {
  const test::ScratchFolder temp;
  make_directories(temp / "run/tables").take();
  write_file_atomically(temp / "run/tokenizer.model", "mine").take();
  write_file_atomically(temp / "t.model", "pieces").take();
  {
    const auto folder = RunFolder::create(temp / "run", {}).take();
    keep_corpus(folder.path(), corpus_with(temp / "t.model")).take();
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(temp / "run"), {}), 2);
  EXPECT_EQ(read_file(temp / "run/tokenizer.model").take(), "mine");
  {
    auto folder = RunFolder::create(temp / "run", {}).take();
    folder.metrics().append({{"step", 1}}).take();
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(temp / "run"), {}), 5);
}

TEST(RunFolder, RefusesAndKeepsAForeignLog) {
  const test::ScratchFolder temp;
  make_directories(temp / "run").take();
  write_file_atomically(temp / "run/timing.jsonl", "mine").take();
  EXPECT_FALSE(RunFolder::create(temp / "run", {}).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(temp / "run"), {}), 1);
  EXPECT_EQ(read_file(temp / "run/timing.jsonl").take(), "mine");
}

TEST(RunFolder, FolderWithOtherFiles_IsRefusedAndKept) {
  const test::ScratchFolder temp;
  make_directories(temp / "home").take();
  write_file_atomically(temp / "home/letter.txt", "dear").take();
  const auto refused = NewRunFolder::create(temp / "home", {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("is not empty: it holds \"letter.txt\""), std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(temp / "home"), {}), 1);
}

TEST(TrainedTime, AddsUpAllStartsOfARun) {
  const test::ScratchFolder temp;
  EXPECT_EQ(trained_time(temp / "timing.jsonl"), Duration{});
  write_file_atomically(temp / "timing.jsonl",
                        "{\"step\": 1, \"seconds\": 2.0}\n{\"step\": 2, \"seconds\": 5.0}\n"
                        "{\"step\": 3, \"seconds\": 1.5}\n{\"step\": 4, \"seconds\": 2.5}\nno json\n")
      .take();
  EXPECT_EQ(trained_time(temp / "timing.jsonl"), std::chrono::milliseconds(7500));
}

TEST(LineLog, RemovesALineThatDoesNotFitOnTheDisk) {
  const test::SmallDisk disk(8192);
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  auto log = LineLog::create(disk.folder() / "metrics.jsonl").take();
  Status status;
  int lines = 0;
  while (status.ok() && lines < 1000) {
    status = log.append({{"step", lines}, {"text", std::string(100, 'x')}});
    if (status.ok()) ++lines;
  }
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("metrics.jsonl: No space left on device"), std::string::npos);
  const auto text = read_file(disk.folder() / "metrics.jsonl").take();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), lines);
  EXPECT_TRUE(text.ends_with("}\n"));
}

}  // namespace
}  // namespace thinpipe
