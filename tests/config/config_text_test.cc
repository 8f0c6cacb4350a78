// Writing: a config survives the round trip through TOML, and the committed reference page matches the list of keys.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/files.h"
#include "base/result.h"
#include "config/config_file.h"
#include "config/keys.h"

namespace thinpipe {
namespace {

RunConfig round_trip(const RunConfig& config) { return parse_config(to_toml(config), "written.toml"); }

TEST(ToToml, DefaultsSurviveTheRoundTrip) { EXPECT_EQ(round_trip(RunConfig{}), RunConfig{}); }

TEST(ToToml, KeepsExplicitValuesOfDerivedKeys) {
  RunConfig config;
  config.model.heads = 8;
  config.model.kv_heads = 2;
  config.model.mlp_width = 33;
  config.pipeline.stages = 3;
  EXPECT_EQ(round_trip(config), config);
}

TEST(ToToml, KeepsDoublesToTheLastBit) {
  RunConfig config;
  for (const double value : {0.1, 1.0 / 3, 5e-324, 0x1.fffffffffffffp-1, 1e-5, 0.30000000000000004, 1.0}) {
    config.model.init_std = value;
    EXPECT_EQ(round_trip(config).model.init_std, value);
  }
  config.model.rope_base = 1e12;
  EXPECT_EQ(round_trip(config).model.rope_base, 1e12);
}

TEST(ToToml, KeepsEveryCharacterOfText) {
  RunConfig config;
  config.data.corpus = "quote\" back\\slash tab\t newline\n bell\a delete\x7f # = [x] 'y' \u00e9 \u4e2d \U0001f600";
  EXPECT_EQ(round_trip(config), config);
}

// A random valid config: every enum value, odd doubles, consistent cuts.
RunConfig random_config(std::mt19937_64& random) {
  const auto whole = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  const auto real = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  RunConfig config;
  config.model.kv_heads = whole(1, 4);
  config.model.heads = config.model.kv_heads * whole(1, 4);
  config.model.d = config.model.heads * 2 * whole(1, 32);
  config.model.mlp_width = whole(1, 1 << 20);
  config.model.blocks = whole(1, 12);
  config.model.positions = static_cast<Positions>(whole(0, 1));
  config.model.rope_base = real(1, 1e6);
  config.model.qk_norm = whole(0, 1) == 1;
  config.data.vocab = whole(260, 1 << 24);
  config.data.val_fraction = real(0.001, 0.5);
  config.train.seed = static_cast<uint64_t>(whole(0, std::numeric_limits<int64_t>::max()));
  config.train.precision = static_cast<Precision>(whole(0, 2));
  config.train.device = "cuda:" + std::to_string(whole(0, 999));
  config.model.mode = static_cast<ModelMode>(whole(0, 1));
  config.boundary.pack = static_cast<Pack>(whole(0, 6));
  config.model.subspace.rank = whole(1, config.model.d);
  config.model.subspace.anchors = static_cast<Anchors>(whole(0, 1));
  config.model.subspace.previous =
      static_cast<Previous>(config.model.subspace.anchors == Anchors::kStage ? whole(0, 1) : 0);
  config.model.subspace.anchor_rank =
      config.model.subspace.anchors == Anchors::kStage ? whole(0, config.model.d) : 0;
  config.optim.kind = config.model.is_subspace() ? OptimizerKind::kRowAdamw : OptimizerKind::kMuon;
  config.optim.schedule = static_cast<LrSchedule>(whole(0, 3));
  config.optim.lr = real(1e-6, 1);
  config.optim.beta2 = real(0, 1);
  config.pipeline.stages = whole(1, config.model.blocks);
  const int64_t cuts = whole(0, 2);
  if (cuts == 1) config.pipeline.cuts = blocks_per_stage(config);
  config.pipeline.auto_cuts = cuts == 2;
  if (config.model.is_subspace() && config.model.subspace.anchors == Anchors::kStage) {
    config.model.subspace.anchor_groups = blocks_per_stage(config);
  }
  return config;
}

TEST(ToToml, KeepsAutomaticCuts) {
  RunConfig config;
  config.pipeline.auto_cuts = true;
  EXPECT_NE(to_toml(config).find("cuts = \"auto\"\n"), std::string::npos);
  EXPECT_EQ(round_trip(config), config);
}

TEST(ToToml, RandomConfigsSurviveTheRoundTrip) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const RunConfig config = random_config(random);
    ASSERT_NO_THROW(validate(config)) << to_toml(config);
    ASSERT_EQ(round_trip(config), config) << to_toml(config);
  }
}

TEST(Keys, AreUniqueAndTheirDefaultsAreInRange) {
  std::vector<std::string> names;
  for (const Key& key : config_keys()) {
    EXPECT_EQ(std::count(names.begin(), names.end(), key.full()), 0) << key.full();
    names.push_back(key.full());
    const KeyValue value = key.get(RunConfig{});
    EXPECT_EQ(static_cast<KeyType>(value.index()), key.type) << key.full();
    EXPECT_TRUE(key.accepts(value)) << key.full();
  }
}

TEST(Keys, SetWritesTheFieldThatGetReads) {
  for (const Key& key : config_keys()) {
    RunConfig config;
    KeyValue other;
    switch (key.type) {
      case KeyType::kBool:
        other = !std::get<bool>(key.get(config));
        break;
      case KeyType::kWhole:
        other = int64_t{3};
        break;
      case KeyType::kNumber:
        other = 0.123;
        break;
      case KeyType::kText:
        other = std::string("elsewhere");
        break;
      case KeyType::kList:
        other = std::vector<int64_t>{3};
        break;
    }
    // An enum accepts only its own words, which `needs` lists in quotes.
    if (key.needs.starts_with('"') && key.name != "device") other = key.needs.substr(1, key.needs.find('"', 1) - 1);
    key.set(config, other);
    EXPECT_EQ(key.get(config), other) << key.full();
  }
}

// Text in a cell of a table: a bar would end the cell.
std::string cell(std::string_view text) {
  std::string out;
  for (const char character : text) out += character == '|' ? std::string("\\|") : std::string(1, character);
  return out;
}

// The tables of docs/config.md: every key with its default, what it may be and what it does.
std::string reference_tables() {
  const RunConfig defaults;
  std::string out;
  for (const Section& section : config_sections()) {
    out += fmt::format("\n## [{}]\n\n{}\n\n| key | default | needs | meaning |\n|---|---|---|---|\n", section.name,
                       section.help);
    for (const Key& key : config_keys()) {
      if (key.section != section.name) continue;
      const std::string standard = fmt::format("`{}`", toml_text(key.get(defaults)));
      out += fmt::format("| `{}` | {} | {} | {} |\n", key.name,
                         cell(key.absent_help.empty() ? standard : key.absent_help), cell(key.needs), cell(key.help));
    }
  }
  return out;
}

TEST(Reference, CommittedPageIsWhatTheKeysSay) {
  const std::string committed = read_file("docs/config.md").take();
  const std::string page = committed.substr(0, committed.find("\n## [")) + reference_tables();
  if (std::getenv("THINPIPE_UPDATE_DOCS") != nullptr) write_file_atomically("docs/config.md", page).take();
  EXPECT_EQ(read_file("docs/config.md").take(), page)
      << "rewrite it: THINPIPE_UPDATE_DOCS=1 test_config --gtest_filter='*Reference*'";
}

}  // namespace
}  // namespace thinpipe
