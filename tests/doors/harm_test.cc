// A host that sends non-finite numbers, garbage, other tokens or tensors of the wrong size: the log names it, the step
// is skipped or retried, and the run continues.
#include <gtest/gtest.h>

#include "apps/running_program.h"

namespace thinpipe {
namespace {

using test::Arguments;
using test::RunningProgram;
using test::Seconds;

class Harm : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Harm, IsNamedAndTheRunLives) {
  const auto& [harm, named] = GetParam();
  const test::Program program;
  test::write_small_run(program);
  const auto run = program / "run";
  RunningProgram serving(program, {"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string(), "--set",
                                   "pipeline.stages=2"});
  ASSERT_TRUE(serving.wait_for_output("to let machines join")) << serving.err();
  const auto invite = program.run({"invite", "--uses", "2", run.string()}).out;
  RunningProgram harmful(program, {invite, harm, "4"}, program / "harm-data", {.program = THINPIPE_HARMFUL_WORKER});
  ASSERT_TRUE(serving.wait_until("it takes the first stage", [&] {
    harmful.look(Seconds(0));
    return serving.err().find("assigned: harm-") != std::string::npos || !harmful.running();
  })) << harmful.err();
  ASSERT_TRUE(harmful.running()) << harmful.err();
  RunningProgram honest(program, {"join", invite, "--listen", "127.0.0.1", "--name", "honest"},
                        program / "honest-data");
  for (auto* running : {&harmful, &honest, &serving}) {
    const auto outcome = running->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }
  const auto& log = serving.err();
  const auto at = log.find(named);
  ASSERT_NE(at, std::string::npos) << log;
  const auto line = log.substr(log.rfind('\n', at) + 1, log.find('\n', at) - log.rfind('\n', at) - 1);
  EXPECT_NE(line.find("(harm-"), std::string::npos) << "not named in: " << line;
  EXPECT_NE(line.find("step 5: "), std::string::npos) << line;
  EXPECT_EQ(test::metrics_lines(run), 21);  // all steps, and the last validation
}

INSTANTIATE_TEST_SUITE_P(Kinds, Harm,
                         // It sends other numbers than it has computed: both ends of the cut tell.
                         ::testing::Values(std::tuple("nan", "do not agree on what crossed the cut between them"),
                                           std::tuple("garbage", "refused a frame of kind 5"),
                                           std::tuple("short", "refused a packet"),
                                           std::tuple("tokens", "are not those of the run's corpus")),
                         [](const auto& one) { return std::string(std::get<0>(one.param)); });

}  // namespace
}  // namespace thinpipe
