// `thinpipe join --keep-model`: a member fetches the finished model and uses it as the organiser does; without the
// right it gets nothing.
#include <gtest/gtest.h>

#include "apps/running_program.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::RunningProgram;

class KeepModel : public ::testing::Test {
 protected:
  void SetUp() override { test::write_small_run(program_); }

  std::unique_ptr<RunningProgram> serve(const Arguments& settings) {
    Arguments arguments{"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run_.string()};
    for (const auto& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    auto running = std::make_unique<RunningProgram>(program_, arguments);
    EXPECT_TRUE(running->wait_for_output("to let machines join")) << running->err();
    return running;
  }

  std::string invite(const Arguments& more = {}) {
    Arguments arguments{"invite", run_.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto outcome = program_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out.substr(0, outcome.out.find('\n'));
  }

  fs::path data_of(const std::string& name) const { return program_ / (name + "-data"); }

  std::unique_ptr<RunningProgram> join(const std::string& name, const std::string& text, const Arguments& more = {}) {
    Arguments arguments{"join", text, "--name", name};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<RunningProgram>(program_, arguments, data_of(name));
  }

  std::string out_on(const std::string& name, const Arguments& arguments) {
    const auto outcome = RunningProgram(program_, arguments, data_of(name)).wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }

  test::Program program_;
  const fs::path run_ = program_ / "run";
};

void expect_ends_well(RunningProgram& running) {
  const auto outcome = running.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

double loss_of(const std::string& out) {
  return nlohmann::json::parse(out.substr(out.rfind('\n', out.size() - 2) + 1)).at("loss").get<double>();
}

constexpr const char* kTwoStages = "pipeline.stages=2";

TEST_F(KeepModel, MemberThatAsksForIt_CanUseTheModelLikeTheOrganiser) {
  auto serving = serve({kTwoStages});
  const auto text = invite({"--uses", "2"});
  auto keeps = join("keeps", text, {"--keep-model", "--max-download", "100mbit"});
  auto other = join("other", text, {"--listen", "127.0.0.1"});
  for (auto* running : {keeps.get(), other.get(), serving.get()}) expect_ends_well(*running);
  EXPECT_NE(keeps->out().find("fetching the model: "), std::string::npos) << keeps->out();
  EXPECT_NE(keeps->out().find("try: thinpipe generate run\n"), std::string::npos) << keeps->out();
  EXPECT_NE(serving->out().find("waiting for 1 machine to fetch the model"), std::string::npos) << serving->out();
  const auto kept = data_of("keeps") / "runs" / "run";
  EXPECT_EQ(test::result_of(kept).model_sha256, test::result_of(run_).model_sha256);
  EXPECT_FALSE(fs::exists(data_of("other") / "runs"));
  for (const auto& entry : fs::directory_iterator(data_of("keeps") / "joined")) {
    EXPECT_FALSE(fs::exists(entry.path() / "model")) << "the fetched files became the run";
  }
  const Arguments generate{"generate", "run", "--prompt", "the", "--temperature", "0", "--max-tokens", "20"};
  auto at_home = generate;
  at_home[1] = run_.string();
  EXPECT_EQ(out_on("keeps", generate), program_.run(at_home).out);
  const auto loss = loss_of(out_on("keeps", {"eval", "run", "--text", "corpus.txt", "--json"}));
  EXPECT_EQ(loss, loss_of(program_.run({"eval", run_.string(), "--text", "corpus.txt", "--json"}).out));
  EXPECT_NE(out_on("keeps", {"runs"}).find("complete"), std::string::npos);
}

TEST_F(KeepModel, RunThatDoesNotShareIt_RefusesBeforeTheInviteIsUsed) {
  auto serving = serve({kTwoStages, "cluster.share_model=false"});
  const auto once = invite();
  const auto refused = join("a", once, {"--keep-model"})->wait();
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  test::expect_one_line(refused, {"--keep-model: the organiser does not give this run's model to its members"});
  EXPECT_FALSE(fs::exists(data_of("a") / "runs"));
  auto a = join("a", once, {"--listen", "127.0.0.1"});
  EXPECT_TRUE(a->wait_for_output("joined as a-"));
  // Nor later: it is a member now.
  a->signal(SIGKILL);
  (void)a->wait();
  const auto again = join("a", once, {"--keep-model"})->wait();
  EXPECT_EQ(again.exit_code, 2) << again.out;
  EXPECT_NE(again.err.find("cluster.share_model"), std::string::npos) << again.err;
  serving->signal(SIGINT);
  (void)serving->wait();
}

TEST_F(KeepModel, MemberThatIsStopped_IsWaitedForUntilTheOrganiserEndsThat) {
  auto serving = serve({kTwoStages, "link.delay=60ms"});
  const auto text = invite({"--uses", "2"});
  auto keeps = join("keeps", text, {"--keep-model", "--listen", "127.0.0.1"});
  auto other = join("other", text, {"--listen", "127.0.0.1"});
  EXPECT_TRUE(keeps->wait_for_output("the run has ended: "));
  ::kill(keeps->pid(), SIGSTOP);
  const bool waited = serving->wait_for_output("waiting for 1 machine to fetch the model", test::Seconds(30));
  serving->signal(SIGINT);
  expect_ends_well(*serving);
  ::kill(keeps->pid(), SIGCONT);
  keeps->signal(SIGINT);  // else it asks for the model for a minute
  EXPECT_NE(keeps->wait().exit_code, -1);
  // Whether it was quicker than the signal: then it has the model.
  EXPECT_TRUE(waited || fs::exists(data_of("keeps") / "runs" / "run"));
  expect_ends_well(*other);
}

}  // namespace
}  // namespace thinpipe
