// The JSON output of `thinpipe lab`: the fields exist, and their values support the method's claims.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/program.h"
#include "models/python_torch.h"

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

// What `lab all --quick --json` says, by experiment. Theory fixes the order of some of its figures at any size.
TEST(Lab, AllExperimentsEndWithAnAnswer_AndWhatTheoryFixesHolds) {
  const Program program;
  const auto outcome = program.run({"lab", "all", "--quick", "--json", "--svg", (program / "plots.svg").string()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::map<std::string, nlohmann::json> said;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{")) continue;
    auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object()) << line;
    EXPECT_FALSE(json.value("answer", "").empty()) << line;
    const auto name = json.value("experiment", "");
    EXPECT_TRUE(std::filesystem::exists(program / ("plots-" + name + ".svg"))) << name;
    said[name] = std::move(json);
  }
  EXPECT_EQ(said.size(), 8u) << outcome.out;

  // A lossy cut errs, more so with more cuts; a cut of the subspace model changes no bit.
  EXPECT_EQ(number(said["depth"], "/subspace_gradient_error"), 0);
  EXPECT_EQ(number(said["depth"], "/subspace_loss_above_uncut"), 0);
  for (const auto& codec : said["depth"].value("codecs", nlohmann::json::array())) {
    if (codec.at("name") == "subspace") continue;
    EXPECT_GT(number(codec, "/gradient_error/0"), 1e-3) << codec;
    EXPECT_GT(number(codec, "/gradient_error/1"), number(codec, "/gradient_error/0")) << codec;
  }
  EXPECT_LT(number(said["drift"], "/row_adamw_drift"), 1e-12);
  EXPECT_GT(number(said["drift"], "/adamw_drift"), 1e-3);
  EXPECT_GT(number(said["drift"], "/wrong_row/gradient_error"), 1e-3);
  EXPECT_GT(number(said["drift"], "/old_basis/gradient_error"), 1e-3);
  EXPECT_LT(number(said["grassmann"], "/largest_gram_error"), 1e-9);
  const auto again = program.run({"lab", "depth", "--quick", "--json"});  // recalled
  EXPECT_EQ(nlohmann::json::parse(again.out.substr(again.out.find("\n{") + 1)), said["depth"]);
}

TEST(Lab, PyTorchComputesTheSameFiguresFromDumpedTensors) {
  test::require_python_torch();
  if (testing::Test::IsSkipped() || HasFatalFailure()) return;
  const Program program;
  const auto folder = (program / "dump").string();
  const auto dumped = [&](const char* experiment) {
    const auto outcome = program.run({"lab", experiment, "--quick", "--json", "--dump", folder});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out.substr(outcome.out.find("\n{") + 1), nullptr, false);
  };
  const auto collapse = dumped("collapse"), depth = dumped("depth");
  const auto second = test::PythonTorch::get().script("lab/recompute.py", program / "dump");
  ASSERT_TRUE(second.contains("stable_ranks")) << second;
  const auto& blocks = collapse["/runs"_json_pointer].back()["points"].back()["blocks"];
  int compared = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (const char* part : {"activations", "gradients", "wp1", "wp2"}) {
      const auto ours = blocks[i].value(nlohmann::json::json_pointer("/" + std::string(part) + "/stable_rank"), -1.0);
      if (ours < 0) continue;
      EXPECT_NEAR(second["stable_ranks"].value(fmt::format("{}.{}", i, part), 0.0) / ours, 1, 1e-6) << i << part;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2 * 2 + 2);
  for (const auto& codec : depth["codecs"]) {
    if (codec["name"] != "topk") continue;
    EXPECT_NEAR(number(second, "/topk_gradient_error") / codec["gradient_error"].back().get<double>(), 1, 1e-9);
  }
}

TEST(Bench, EngineComparesWithPlainProducts_AndWithPyTorchIfThisPythonHasIt) {
  const Program program;
  const auto alone = last_line(program, {"bench", "engine", "--quick", "--json", "--python", "no-such-python"});
  ASSERT_TRUE(alone.is_object());
  EXPECT_TRUE(alone["pytorch"].is_null()) << alone;
  for (const char* field : {"/share_of_sgemm_1", "/share_of_sgemm_2", "/thread_gain_dense", "/thread_gain_subspace",
                            "/muon_share", "/peak_memory_mb"}) {
    EXPECT_GT(number(alone, field), 0) << field;
  }
  test::require_python_torch();
  if (testing::Test::IsSkipped() || HasFatalFailure()) return;
  const auto python = test::PythonTorch::get().python();
  const auto both = last_line(program, {"bench", "engine", "--quick", "--json", "--python", python});
  ASSERT_TRUE(both.is_object());
  EXPECT_FALSE(both["pytorch"].is_null()) << both;
  for (const char* field : {"/dense_over_pytorch_1", "/dense_over_pytorch_2", "/subspace_over_pytorch_2"}) {
    EXPECT_GT(number(both, field), 0) << field;
  }
}

TEST(Lab, DefaultComparesBothRecipesWithDense) {
  const Program program;
  test::Arguments arguments{"lab", "default", "--minutes", "0.05", "--recipe", "both", "--json"};
  for (const char* setting : {"model.d=32", "model.blocks=2", "model.heads=2", "data.vocab=1024", "train.seq_len=32",
                              "train.microbatch=1"}) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  const auto said = last_line(program, arguments);
  ASSERT_TRUE(said.is_object());
  EXPECT_EQ(number(said, "/subspace_loss"), number(said, "/llama/validation_loss"));
  EXPECT_EQ(number(said, "/dense_loss"), number(said, "/dense/validation_loss"));
  EXPECT_EQ(number(said, "/compression_vs_fp32"), number(said, "/llama/compression_vs_fp32"));
  EXPECT_GT(number(said, "/fast/parameters"), number(said, "/llama/parameters"));
  EXPECT_GT(number(said, "/unigram_entropy"), 0);
}

TEST(Plan, ListsEveryStage_AndRecomputingNeedsLessMemory) {
  const Program program;
  const auto kept = last_line(program, {"plan", "--json", "--set", "pipeline.stages=3"});
  ASSERT_EQ(kept["stages"].size(), 3u) << kept;
  EXPECT_EQ(number(kept, "/stages/2/last_block"), 5);
  double sum = 0;
  for (const auto& stage : kept["stages"]) sum += stage["parameters"].get<double>();
  EXPECT_EQ(sum, number(kept, "/parameters"));
  const auto again =
      last_line(program, {"plan", "--json", "--set", "pipeline.stages=3", "--set", "train.recompute=block"});
  for (size_t i = 0; i < 3; ++i) {
    const auto field = fmt::format("/stages/{}/memory_bytes", i);
    EXPECT_LT(number(again, field), number(kept, field)) << i;
  }
  expect_refused(program, {"plan", "no.toml"}, {"no.toml"});
}

TEST(Lab, RefusesImpossibleNumbers) {
  const Program program;
  expect_refused(program, {"lab", "default", "--minutes", "nan"}, {"--minutes nan", "0.05 to 10000"});
  for (const char* minutes : {"inf", "0"}) {
    expect_refused(program, {"lab", "default", "--minutes", minutes}, {"--minutes", minutes});
  }
  expect_refused(program, {"lab", "speedrun", "--only", "lama"}, {"--only lama", "rows are dense", "llama", "fast"});
  expect_refused(program, {"lab", "speedrun", "--row", "int8"}, {"--row \"int8\"", "KEY=VALUE"});
  test::write_file(program / "other.json", "{\"runs\": [{\"model\": 3}]}");
  expect_refused(program, {"lab", "collapse", "--quick", "--elsewhere", "other.json"},
                 {"--elsewhere other.json", "collapse_elsewhere.py"});
  expect_refused(program, {"compare", "--rate", "fast"}, {"--rate fast", "80mbit"});
  expect_refused(program, {"bench", "table", "--rounds", "nan"}, {"--rounds", "nan"});
  expect_refused(program, {"bench", "table", "--threads", "99999999999999999999"}, {"--threads", "9999999"});
  expect_refused(program, {"bench", "wan", "--steps", "nan"}, {"--steps", "nan"});
  expect_refused(program, {"bench", "data", "--size", "nanMB"}, {"--size", "nanMB"});
  expect_refused(program, {"bench", "data", "--size", "1kB"}, {"--size 1kB", "at least 1MB"});
}

}  // namespace
}  // namespace thinpipe
