// train.sample_every: samples of the model's text while it is trained, which change nothing else.
#include <gtest/gtest.h>

#include "apps/running_program.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::RunningProgram;

class Sampling : public ::testing::Test {
 protected:
  void SetUp() override { test::write_small_run(program_); }

  static std::vector<pid_t> samplers_of(const fs::path& run) {
    std::vector<pid_t> pids;
    for (const auto& info : test::all_processes()) {
      const bool samples = info.arguments.size() > 2 && info.arguments[1] == "sample" && info.state != 'Z';
      if (samples && info.arguments[2].starts_with(run.string())) pids.push_back(info.pid);
    }
    return pids;
  }

  test::Program program_;
};

// Slow enough for samples between the checkpoints.
const Arguments kSettings{"pipeline.stages=2", "train.steps=60", "link.delay=60ms"};

TEST_F(Sampling, TrainShowsAndKeepsSamples_AndTheResultIsTheSame) {
  const auto without = program_ / "without", with = program_ / "with";
  const auto plain = program_.run(test::small_run(without, kSettings));
  ASSERT_EQ(plain.exit_code, 0) << plain.err << test::logs_of(without);
  EXPECT_EQ(plain.out.find("sample after step"), std::string::npos) << plain.out;
  auto settings = kSettings;
  settings.push_back("train.sample_every=10");
  RunningProgram training(program_, test::small_run(with, settings));
  size_t most = 0;
  EXPECT_TRUE(training.wait_until("it samples", [&] {
    most = std::max(most, samplers_of(with).size());
    return !training.running() || most > 0;
  }));
  ASSERT_EQ(program_.run({"pause", with.string()}).exit_code, 0) << "so that the sample is ready before the end";
  EXPECT_TRUE(training.wait_until("the sample is shown", [&] {
    most = std::max(most, samplers_of(with).size());
    return !training.running() || training.out().find("sample after step ") != std::string::npos;
  }));
  EXPECT_EQ(program_.run({"resume", with.string()}).exit_code, 0);
  const auto sampled = training.wait();
  ASSERT_EQ(sampled.exit_code, 0) << sampled.err << test::logs_of(with);
  EXPECT_LE(most, 1U);
  EXPECT_TRUE(samplers_of(with).empty());
  test::expect_same_result(with, test::result_of(without));
  const auto samples = test::lines_of(with / "samples.jsonl");
  ASSERT_GE(samples.size(), 2U) << sampled.out;
  EXPECT_EQ(samples.back().at("step"), 60) << "the sample at the end is one of them";
  EXPECT_EQ(samples.front().at("step").get<int64_t>() % 5, 0) << "of a checkpoint";
  EXPECT_GE(samples.front().at("step"), 10);
  const auto first = fmt::format("sample after step {}: {}\n", samples.front().at("step").get<int64_t>(),
                                 samples.front().at("text").get<std::string>());
  EXPECT_NE(sampled.out.find(first), std::string::npos) << sampled.out << "\nhas no line " << first;
  const auto shown = program_.run({"show", with.string(), "--json"});
  EXPECT_NE(shown.out.find("sample after step 60: "), std::string::npos) << shown.out;
  const auto json = nlohmann::json::parse(shown.out.substr(shown.out.find("\n{") + 1));
  EXPECT_EQ(json.at("samples").size(), samples.size());
  EXPECT_EQ(program_.run({"report", with.string(), "--out", (program_ / "report.html").string()}).exit_code, 0);
  EXPECT_NE(read_file(program_ / "report.html").take().find("<td>step 60</td>"), std::string::npos);
}

TEST_F(Sampling, SampleThatIsUnderWay_EndsWithTheRun) {
  const auto run = program_ / "run";
  auto settings = kSettings;
  settings.push_back("train.sample_every=5");
  RunningProgram training(program_, test::small_run(run, settings));
  pid_t sampler = -1;
  ASSERT_TRUE(training.wait_until("a sample is under way", [&] {
    const auto found = samplers_of(run);
    if (!found.empty()) sampler = found.front();
    return sampler > 0 || !training.running();
  }));
  ASSERT_GT(sampler, 0) << training.out();
  ::kill(sampler, SIGSTOP);
  const auto outcome = training.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(samplers_of(run).empty());
  EXPECT_TRUE(fs::exists(run / "model.safetensors"));
}

TEST_F(Sampling, ServeShowsThem_AndResumedRunGoesOn) {
  const auto run = program_ / "run";
  Arguments arguments{"serve", "small.toml", "--join", "--listen", "127.0.0.1", "--run-dir", run.string()};
  for (const char* one : {"pipeline.stages=1", "train.steps=100000", "train.sample_every=10"}) {
    arguments.insert(arguments.end(), {"--set", one});
  }
  RunningProgram serving(program_, arguments);
  EXPECT_TRUE(serving.wait_for_output("sample after step ")) << serving.err();
  serving.signal(SIGINT);
  const auto outcome = serving.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(samplers_of(run).empty());
  const auto before = test::lines_of(run / "samples.jsonl");
  ASSERT_FALSE(before.empty());
  RunningProgram resumed(
      program_, {"serve", "--run", run.string(), "--join", "--listen", "127.0.0.1", "--set", "train.sample_every=20"});
  EXPECT_TRUE(resumed.wait_for_output("sample after step ")) << resumed.err();
  resumed.signal(SIGINT);
  (void)resumed.wait();
  const auto after = test::lines_of(run / "samples.jsonl");
  EXPECT_GT(after.back().at("step"), before.back().at("step"));
}

}  // namespace
}  // namespace thinpipe
