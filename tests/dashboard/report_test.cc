#include "dashboard/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "dashboard/made_up_run.h"

namespace thinpipe::test {
namespace {

TEST(RunReport, HoldsCurvesAndNoScript) {
  const MadeUpRun run;
  run.add_steps(1, 40);
  run.append("config.toml", "# <script>alert(1)</script>\n");
  const auto text = run_report(run.folder());
  EXPECT_NE(text.find("<svg"), std::string::npos);
  EXPECT_NE(text.find("40 of 1000"), std::string::npos);
  EXPECT_NE(text.find("stage 1"), std::string::npos);
  EXPECT_NE(text.find("&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(text.find("<script"), std::string::npos);
  EXPECT_EQ(text.find("http://"), text.find("http://www.w3.org/2000/svg"));
}

TEST(RunReport, WithASampleOfText_ShowsItEscaped) {
  const MadeUpRun run;
  run.add_steps(1, 4);
  EXPECT_EQ(run_report(run.folder()).find("<td>step 4</td>"), std::string::npos);
  run.append("samples.jsonl", R"({"step":4,"text":"In the <b>beginning</b>"})" "\n");
  const auto text = run_report(run.folder());
  EXPECT_NE(text.find("<td>step 4</td>"), std::string::npos);
  EXPECT_NE(text.find("In the &lt;b&gt;beginning"), std::string::npos);
}

TEST(RunReport, OfARunWithoutSteps_SaysSo) {
  const MadeUpRun run;
  EXPECT_NE(run_report(run.folder()).find("No step was committed"), std::string::npos);
}

TEST(RunTrace, HasASlicePerStepAndPass) {
  const MadeUpRun run;
  run.add_steps(1, 12);  // steps 1 and 11 are traced
  const auto trace = nlohmann::json::parse(run_trace(run.folder()));
  int64_t names = 0, steps = 0, passes = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M") ++names;
    if (event["ph"] != "X") continue;
    (event["name"].get<std::string>().starts_with("step") ? steps : passes)++;
    EXPECT_GE(event["dur"], 0);
  }
  EXPECT_EQ(names, 2);
  EXPECT_EQ(steps, 2 * 12);
  EXPECT_EQ(passes, 2 * 2 * 2);
}

TEST(RunTrace, WithoutTimedSteps_IsRefused) {
  const MadeUpRun run;
  EXPECT_THROW((void)run_trace(run.folder()), UserError);
}

}  // namespace
}  // namespace thinpipe::test
