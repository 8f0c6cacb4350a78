// A run and the text it began with: found when the source has moved or changed, refused when it has changed and no copy
// is left, not needed to use the trained model.
#include <gtest/gtest.h>

#include <fstream>

#include "apps/program.h"
#include "base/files.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::expect_refused;
using test::Program;
using test::write_file;

class RunCorpus : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
    test::write_tiny_run(program_);
  }

  void in_process(const std::string& run) {
    must(test::tiny_run({"model.mode=subspace", "train.steps=2"}, {"--run-dir", run}));
  }
  void by_processes(const std::string& run) {
    must({"train", "tiny.toml", "--run-dir", run, "--set", "model.mode=subspace", "--set", "train.steps=3", "--set",
          "pipeline.stages=2", "--set", "checkpoint.every=1", "--set", "checkpoint.mode=sync", "--set",
          "link.rate=unlimited"});
  }
  // A run at step 0 that can be resumed.
  void imported(const std::string& run) {
    in_process("first");
    must({"export", "first", "--format", "hf", "--out", "hf"});
    must({"import", "hf", "--run-dir", run, "--set", "data.corpus=corpus.txt", "--set", "train.steps=2", "--set",
          "train.seq_len=8", "--set", "pipeline.stages=2", "--set", "link.rate=unlimited", "--set",
          "train.microbatch=2"});
  }

  std::string must(const Arguments& arguments) {
    const auto outcome = program_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  void move_the_text_away() { fs::rename(program_ / "corpus.txt", program_ / "elsewhere.txt"); }
  // The line with the loss; it contains no speed.
  std::string loss_of(const std::string& run) {
    const auto out = must({"eval", run});
    const auto at = out.find("loss ");
    return at == std::string::npos ? out : out.substr(at);
  }

  Program program_;
};

TEST_F(RunCorpus, SourceMoved_CorpusIsStillFound) {
  in_process("one");
  by_processes("two");
  const auto one = loss_of("one"), two = loss_of("two");
  move_the_text_away();
  EXPECT_EQ(loss_of("one"), one);
  EXPECT_EQ(loss_of("two"), two);
}

TEST_F(RunCorpus, IsNotReplacedByAnotherTextOfTheSameName) {
  in_process("one");
  by_processes("two");
  const auto one = loss_of("one");
  write_file(program_ / "corpus.txt", test::english(400, 99));
  EXPECT_EQ(loss_of("one"), one);
  fs::remove_all(program_.data() / "prepared");
  expect_refused(program_, {"eval", "one"}, {"corpus.txt", "is not the text that this run started with"});
  expect_refused(program_, {"eval", "two"}, {"corpus.txt", "is not the text that this run started with"});
  // Older runs have no id; the tokenizer decides.
  fs::remove(program_ / "one" / "corpus_id");
  expect_refused(program_, {"eval", "one"}, {"corpus.txt", "is not the text that this run started with"});
}

TEST_F(RunCorpus, IsNotNeededToUseTheModel) {
  imported("run");
  move_the_text_away();
  fs::remove_all(program_.data() / "prepared");
  must({"generate", "run", "--prompt", "The", "--max-tokens", "3"});
  must({"export", "run", "--format", "gguf", "--out", "run.gguf"});
}

TEST_F(RunCorpus, SourceMoved_RunCanBeResumed) {
  imported("run");
  move_the_text_away();
  EXPECT_NE(must({"train", "--resume", "run"}).find("validation loss"), std::string::npos);
}

TEST_F(RunCorpus, SourceChangedAndNoCopyLeft_ResumeIsRefusedAndLeavesTheRunUnchanged) {
  imported("run");
  const auto config = read_file(program_ / "run" / "config.toml").take();
  write_file(program_ / "corpus.txt", test::english(400, 99));
  fs::remove_all(program_.data() / "prepared");
  for (const Arguments& command : {Arguments{"train", "--resume", "run"}, Arguments{"serve", "--run", "run"}}) {
    auto arguments = command;
    arguments.insert(arguments.end(), {"--set", "pipeline.stages=1"});
    expect_refused(program_, arguments, {"is not the text that this run started with"});
    EXPECT_EQ(read_file(program_ / "run" / "config.toml").take(), config);
  }
}

TEST_F(RunCorpus, WeightsOfADamagedCheckpointAreNotUsed) {
  by_processes("run");
  fs::remove(program_ / "run" / "model.safetensors");
  EXPECT_NE(must({"eval", "run"}).find("(step 3)"), std::string::npos);
  std::fstream file(checkpoint_of_step(program_ / "run", 3).take().files.front(),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end) << "~~~";
  file.close();
  EXPECT_NE(must({"eval", "run"}).find("(step 2)"), std::string::npos);
  expect_refused(program_, {"export", "run", "--step", "3", "--format", "hf", "--out", "x"}, {"damaged"});
}

}  // namespace
}  // namespace thinpipe
