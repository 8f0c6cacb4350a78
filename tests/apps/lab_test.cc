// The JSON output of `thinpipe lab`: the fields exist, and their values support the method's claims.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/program.h"

namespace thinpipe {
namespace {

using test::expect_refused;
using test::Program;

// The JSON object on the last line; null if there is none.
nlohmann::json last_line(const Program& program, const test::Arguments& arguments) {
  const auto outcome = program.run(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(outcome.out.ends_with("}\n")) << outcome.out;
  if (outcome.out.empty()) return {};
  const auto before = outcome.out.rfind('\n', outcome.out.size() - 2);
  return nlohmann::json::parse(outcome.out.substr(before + 1), nullptr, /*allow_exceptions=*/false);
}

// A number, or a failure: non-finite ones are printed as null.
double number(const nlohmann::json& object, const std::string& pointer) {
  const auto value = object.value(nlohmann::json::json_pointer(pointer), nlohmann::json());
  EXPECT_TRUE(value.is_number()) << pointer << " in " << object;
  return value.is_number() ? value.get<double>() : NAN;
}

TEST(Lab, ExactnessPrintsErrorsOfRoundingAndTheCostOfEveryPack) {
  const Program program;
  const auto said = last_line(program, {"lab", "exactness", "--json"});
  ASSERT_TRUE(said.is_object());
  for (const char* field : {"/max_rel_grad_error", "/max_rel_loss_error", "/max_rel_second_moment_error"}) {
    EXPECT_LE(number(said, field), 1e-12) << field;
    EXPECT_GT(number(said, field), 0) << field;  // 0 would mean it compared a computation with itself
  }
  // Rounding per number: 2^-24, 2^-9, half a step of its token's largest. Blocks amplify it; these are upper bounds.
  const std::pair<const char*, double> packs[] = {{"fp32", 1e-4}, {"bf16", 1}, {"int8", 1}, {"int4", 10}};
  for (const auto& [pack, limit] : packs) {
    const std::string place = std::string("/packs/") + pack;
    EXPECT_GT(number(said, place + "/rel_grad_error"), 1e-12) << pack;
    EXPECT_LT(number(said, place + "/rel_grad_error"), limit) << pack;
    EXPECT_GT(number(said, place + "/rel_loss_error"), 1e-12) << pack;
    EXPECT_LT(number(said, place + "/rel_loss_error"), limit) << pack;
  }
  EXPECT_EQ(said["packs"].size(), std::size(packs));
  EXPECT_TRUE(program.contents().empty());
}

TEST(Lab, OptimizerPrintsThatRowsStayInTheSubspaceAndElementsDoNot) {
  const Program program;
  const auto said = last_line(program, {"lab", "optimizer", "--json"});
  ASSERT_TRUE(said.is_object());
  EXPECT_LT(number(said, "/row_adamw_drift"), 1e-12);
  EXPECT_GT(number(said, "/row_adamw_drift"), 0);
  EXPECT_GT(number(said, "/adamw_drift"), 1e-2);
  EXPECT_TRUE(program.contents().empty());
}

TEST(Lab, RefusesImpossibleNumbers) {
  const Program program;
  expect_refused(program, {"lab", "default", "--minutes", "nan"}, {"--minutes nan", "0.05 to 10000"});
  for (const char* minutes : {"inf", "0"}) {
    expect_refused(program, {"lab", "default", "--minutes", minutes}, {"--minutes", minutes});
  }
  expect_refused(program, {"lab", "speedrun", "--only", "lama"}, {"--only lama", "rows are dense", "llama", "fast"});
  expect_refused(program, {"lab", "speedrun", "--row", "int8"}, {"--row \"int8\"", "KEY=VALUE"});
  expect_refused(program, {"bench", "table", "--rounds", "nan"}, {"--rounds", "nan"});
  expect_refused(program, {"bench", "table", "--threads", "99999999999999999999"}, {"--threads", "9999999"});
  expect_refused(program, {"bench", "wan", "--steps", "nan"}, {"--steps", "nan"});
  expect_refused(program, {"bench", "data", "--size", "nanMB"}, {"--size", "nanMB"});
  expect_refused(program, {"bench", "data", "--size", "1kB"}, {"--size 1kB", "at least 1MB"});
}

}  // namespace
}  // namespace thinpipe
