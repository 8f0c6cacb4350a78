// Runs that are trained longer, and new runs that begin with the weights of others: what they compute, what they say,
// and what is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/running_program.h"
#include "config/config_file.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::expect_refused;
using test::RunningProgram;
using test::small_run;
using Json = nlohmann::json;

class TrainOn : public testing::Test {
 protected:
  void SetUp() override { test::write_small_run(program_); }

  // Two stages and a basis that stays, with further settings; trains `name` and returns its folder.
  static Arguments with(const Arguments& more) {
    Arguments settings{"pipeline.stages=2", "subspace.update_every=0"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  fs::path trained(const std::string& name, const Arguments& more) {
    const auto run = program_ / name;
    must(small_run(run, with(more)));
    return run;
  }

  std::string must(const Arguments& arguments) {
    const auto outcome = program_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }

  static Arguments longer(const fs::path& run, const std::string& steps) {
    return {"train", "--resume", run.string(), "--steps", steps};
  }

  static double final_loss(const fs::path& run) {
    return test::lines_of(run / "metrics.jsonl").back().at("final_validation_loss");
  }

  test::Program program_;
};

// The learning rate does not depend on the length here, so the longer run is the run of that length. The first end is
// also a step that is evaluated for the record: its line is the same, too.
TEST_F(TrainOn, CompleteRunOfConstantRateTrainedLonger_IsTheRunOfThatLength) {
  must(small_run(program_ / "expected", with({"optim.schedule=constant", "train.steps=20"}), {"--in-process"}));
  const auto run = trained("run", {"optim.schedule=constant", "train.steps=13"});
  const auto said = must(longer(run, "20"));
  EXPECT_NE(said.find("steps: 20 instead of 13\n"), std::string::npos) << said;
  test::expect_same_result(run, test::result_of(program_ / "expected"));
  EXPECT_EQ(load_config(run / "config.toml").train.steps, 20);
}

TEST_F(TrainOn, TrainedLongerAndKilledMeanwhile_EndsWithTheSameBits) {
  const auto whole = trained("whole", {"train.steps=7", "link.delay=60ms"});
  const auto killed = program_ / "killed";
  fs::copy(whole, killed, fs::copy_options::recursive);
  const auto said = must(longer(whole, "24"));
  EXPECT_NE(said.find("steps: 24 instead of 7; the learning rate is planned again for that many: it was "),
            std::string::npos)
      << said;
  const auto expected = test::result_of(whole);
  {
    RunningProgram running(program_, longer(killed, "24"));
    ASSERT_TRUE(running.wait_until("some steps are done",
                                   [&] { return test::metrics_lines(killed) >= 12 || !running.running(); }) &&
                running.running())
        << running.err();
    EXPECT_FALSE(fs::exists(killed / "model.safetensors")) << "those of the first end would be taken for the newest";
    running.signal(SIGKILL);
    (void)running.wait();
  }
  must({"train", "--resume", killed.string()});
  test::expect_same_result(killed, expected);
}

TEST_F(TrainOn, StoppedRun_GetsAnotherLength) {
  const auto run = program_ / "run";
  {
    RunningProgram running(program_, small_run(run, with({"train.steps=300", "link.delay=60ms"})));
    ASSERT_TRUE(running.wait_until("some steps are done", [&] {
      return test::metrics_lines(run) >= 6 || !running.running();
    }) && running.running());
    running.signal(SIGINT);
    EXPECT_EQ(running.wait().exit_code, 130);
  }
  const auto done = test::metrics_lines(run);
  expect_refused(program_, longer(run, "5"),
                 {"train.steps = 5", fmt::format("has done {} steps", done), "at least as many"});
  EXPECT_EQ(load_config(run / "config.toml").train.steps, 300);
  must(longer(run, fmt::format("{}", done + 2)));
  EXPECT_EQ(test::metrics_lines(run), done + 3);  // and the line of the end
}

TEST_F(TrainOn, WhatCannotBeTrainedLonger_IsRefusedAndStays) {
  const auto run = trained("run", {"train.steps=5"});
  const auto before = test::result_of(run);
  expect_refused(program_, longer(run, "4"),
                 {"train.steps = 4: this run has done 5 steps and is complete; needs more"});
  expect_refused(program_, longer(run, "5"), {"this run is complete"});
  expect_refused(program_, {"train", "--resume", run.string()}, {"complete after 5 steps", "--steps N", "--from"});
  fs::rename(run / "checkpoints", program_ / "checkpoints");
  expect_refused(program_, longer(run, "9"), {"checkpoint of step 5 is gone or damaged", "--from"});
  EXPECT_EQ(test::result_of(run), before);
  fs::rename(program_ / "checkpoints", run / "checkpoints");
  must(longer(run, "6"));
}

// ---- from another run's weights ----

TEST_F(TrainOn, FromARun_BeginsWithItsWeightsAndItsTokenizer) {
  const auto first = trained("first", {"train.steps=10"});
  // No step at all: the loss of the first run.
  const auto same = program_ / "same";
  const auto said = must({"train", "--from", first.string(), "--run-dir", same.string(), "--steps", "0"});
  EXPECT_NE(said.find("weights: from run first (complete); the optimizer's moments begin at zero"), std::string::npos)
      << said;
  EXPECT_EQ(final_loss(same), final_loss(first));
  EXPECT_NE(must({"show", same.string()}).find("origin: run first (complete)\n"), std::string::npos);

  test::write_file(program_ / "other.txt", test::english(400, 9));
  const auto other = program_ / "other";
  must({"train", "other.txt", "--from", first.string(), "--step", "5", "--run-dir", other.string(), "--set",
        "train.steps=3", "--set", "pipeline.stages=1", "--set", "optim.kind=adamw", "--set", "train.seed=9"});
  EXPECT_EQ(read_file(other / "tokenizer.model").take(), read_file(first / "tokenizer.model").take());
  const auto config = load_config(other / "config.toml");
  EXPECT_EQ(config.data.corpus, "other.txt");
  EXPECT_EQ(config.train.seq_len, 16) << "as in the first run";
  EXPECT_EQ(config.model, load_config(first / "config.toml").model);
  EXPECT_NE(read_file(other / "corpus_id").take(), read_file(first / "corpus_id").take());
  // It has learned something before its first step.
  const double begin = test::lines_of(other / "metrics.jsonl").front().at("loss");
  const double untrained = test::lines_of(first / "metrics.jsonl").front().at("loss");
  EXPECT_LT(begin, untrained);
  // It needs nothing of the first run any more.
  fs::remove_all(first);
  must(longer(other, "4"));
}

TEST_F(TrainOn, FromARunWithAConfig_TakesTheModelAndNothingElse) {
  const auto first = trained("first", {"train.steps=4", "optim.lr=0.5"});
  test::write_file(program_ / "more.toml",
                   "[data]\ncorpus = \"corpus.txt\"\n[train]\nsteps = 2\nseq_len = 16\nthreads = 1\n"
                   "[pipeline]\nstages = 3\n[boundary]\npack = \"fp32\"\n");
  must({"train", "more.toml", "--from", first.string(), "--run-dir", "second"});
  const auto second = load_config(program_ / "second/config.toml");
  EXPECT_EQ(second.model, load_config(first / "config.toml").model);
  EXPECT_EQ(second.pipeline.stages, 3);
  EXPECT_NE(second.optim.lr, 0.5);
}

TEST_F(TrainOn, FromADenseRun_Works) {
  const auto first = trained("first", {"train.steps=4", "model.mode=dense", "model.table=corpus"});
  const auto second = program_ / "second";
  must({"train", "--from", first.string(), "--run-dir", second.string(), "--steps", "0"});
  EXPECT_EQ(final_loss(second), final_loss(first));
}

TEST_F(TrainOn, FromARunThatDoesNotFit_NamesTheKey) {
  const auto first = trained("first", {"train.steps=4", "model.table="});
  const auto refused = [&](const std::string& setting, const Arguments& parts) {
    expect_refused(program_, {"train", "--from", first.string(), "--set", setting}, parts);
  };
  refused("model.d=64", {"model.d = 64: run first (complete) has 32", "leave the key out"});
  refused("model.mode=dense", {"model.mode = \"dense\"", "\"subspace\""});
  refused("subspace.rank=4", {"subspace.rank = 4", " has 8"});
  refused("data.vocab=400", {"data.vocab = 400", " has 300"});
  refused("data.tokenizer=x.model", {"data.tokenizer = \"x.model\""});
  refused("train.seed=2", {"train.seed = 2", "a token table drawn from 1"});
  refused("model.dd=64", {"did you mean model.d?"});
  expect_refused(program_, {"train", "--from", first.string(), "--step", "3"}, {"step 3"});
  expect_refused(program_, {"train", "--from", "nothing"}, {"nothing"});
  expect_refused(program_, {"train", "--from", first.string(), "--in-process"}, {"--in-process"});
  expect_refused(program_, {"train", "--from", first.string(), "--resume"}, {"--resume"});
  expect_refused(program_, {"train", "--step", "3"}, {"--step is for --from"});
}

// ---- the end of training ----

TEST_F(TrainOn, End_ShowsASampleAndWhatToTryNext) {
  const auto said = must(small_run(program_ / "run", with({"train.steps=3"})));
  const auto sample = said.find("\nsample: ");
  ASSERT_NE(sample, std::string::npos) << said;
  EXPECT_EQ(said.find("no sample"), std::string::npos) << said;
  const auto run = (program_ / "run").string();
  for (const std::string& command :
       {"thinpipe generate " + run, "thinpipe eval " + run, "thinpipe export " + run + " --format gguf",
        "thinpipe train --resume " + run + " --steps 6"}) {
    EXPECT_NE(said.find(command + "\n", sample), std::string::npos) << command << " not in " << said;
  }
}

TEST_F(TrainOn, SampleThatCannotBeMade_DoesNotFailTheRun) {
  const auto said = must(small_run(program_ / "run", with({"train.steps=2", "train.seq_len=1"})));
  EXPECT_NE(said.find("\nno sample: its context is one token\n"), std::string::npos) << said;
}

}  // namespace
}  // namespace thinpipe
