// Reading: what a config file and --set may contain, and the one-line errors for everything else.
#include "config/config_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/scratch.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

// Four blocks unless the text or an override says otherwise.
RunConfig parse(std::string_view text, std::vector<std::string> overrides = {}) {
  const std::vector<std::string> four{"model.blocks=4"};
  return parse_config(text, "x.toml", overrides, four);
}

std::string refusal(std::string_view text, std::vector<std::string> overrides = {}) {
  return test::user_error([&] { parse(text, std::move(overrides)); });
}

// Defaults of a file that depend on other keys are not those of the struct.
RunConfig defaults() {
  RunConfig config;
  config.model.table = kTableFromCorpus;
  config.model.subspace.full_rank_tail = 2;
  return config;
}

TEST(ConfigFile, EmptyTextGivesTheDefaults) { EXPECT_EQ(parse_config("", "x.toml"), defaults()); }

TEST(ConfigFile, DefaultTomlGivesTheDefaults) { EXPECT_EQ(load_config("configs/default.toml"), defaults()); }

TEST(ConfigFile, TheFastRecipeChangesDefaultsThatAreNotGiven) {
  auto fast = parse("[model]\nrecipe = \"fast\"\n").model;
  EXPECT_EQ(fast.subspace.anchors, Anchors::kStage);
  EXPECT_EQ(fast.subspace.previous, Previous::kTable);
  EXPECT_EQ(fast.subspace.anchor_groups, (std::vector<int64_t>{1, 1, 1, 1}));
  const auto given = parse("", {"model.recipe=fast", "subspace.previous=none"}).model;
  EXPECT_EQ(given.subspace.anchors, Anchors::kStage);
  EXPECT_EQ(given.subspace.previous, Previous::kNone);
  const auto fixed = parse("", {"model.recipe=fast", "subspace.anchors=fixed"}).model;
  EXPECT_EQ(fixed.subspace.previous, Previous::kNone);
  EXPECT_NE(refusal("", {"subspace.previous=table"}).find("needs subspace.anchors = \"stage\""), std::string::npos);
  EXPECT_NE(refusal("", {"subspace.anchor_rank=8"}).find("needs subspace.anchors = \"stage\""), std::string::npos);
  EXPECT_NE(refusal("", {"model.recipe=fast", "subspace.anchor_rank=321"}).find("needs at most model.d = 320"),
            std::string::npos);
}

TEST(ConfigFile, ReadsEveryType) {
  const RunConfig config = parse(R"(
[model]
d = 512
qk_norm = true
positions = "sinusoidal"
rope_base = 5000        # a whole number where a number is asked for
[data]
corpus = "my text.txt"
[train]
precision = "bf16"
seed = 9223372036854775807
[optim]
lr = 3e-4
kind = "adamw"
schedule = "cosine"
[pipeline]
cuts = [1, 3]
)");
  EXPECT_EQ(config.model.d, 512);
  EXPECT_TRUE(config.model.qk_norm);
  EXPECT_EQ(config.model.positions, Positions::kSinusoidal);
  EXPECT_EQ(config.model.rope_base, 5000.0);
  EXPECT_EQ(config.data.corpus, "my text.txt");
  EXPECT_EQ(config.train.precision, Precision::kBf16);
  EXPECT_EQ(config.train.seed, 9223372036854775807u);
  EXPECT_EQ(config.optim.lr, 3e-4);
  EXPECT_EQ(config.optim.kind, OptimizerKind::kAdamw);
  EXPECT_EQ(config.optim.schedule, LrSchedule::kCosine);
  EXPECT_EQ(config.pipeline.cuts, (std::vector<int64_t>{1, 3}));
}

TEST(ConfigFile, AbsentKvHeadsFollowHeads) {
  EXPECT_EQ(parse("[model]\nheads = 8").model.kv_heads, 8);
  EXPECT_EQ(parse("", {"model.heads=8"}).model.kv_heads, 8);
  EXPECT_EQ(parse("[model]\nheads = 8\nkv_heads = 2").model.kv_heads, 2);
  EXPECT_EQ(parse("[model]\nkv_heads = 2", {"model.heads=8"}).model.kv_heads, 2);
}

TEST(ConfigFile, AbsentMlpWidthFollowsD) {
  EXPECT_EQ(parse("[model]\nd = 512").model.mlp_width, 1376);
  EXPECT_EQ(parse("[model]\nd = 384").model.mlp_width, 1024);
  EXPECT_EQ(parse("[model]\nmlp_width = 100", {"model.d=512"}).model.mlp_width, 100);
}

TEST(ConfigFile, AbsentStagesFollowCuts) {
  EXPECT_EQ(parse("[pipeline]\ncuts = [1, 2, 1]").pipeline.stages, 3);
  EXPECT_EQ(parse("", {"pipeline.cuts=[1,3]"}).pipeline.stages, 2);
  EXPECT_EQ(parse("[pipeline]\ncuts = []").pipeline.stages, 4);
  EXPECT_EQ(parse("[model]\nblocks = 2").pipeline.stages, 2);
}

TEST(Overrides, WinOverTheFileAndTheLastOneWins) {
  EXPECT_EQ(parse("[model]\nd = 128", {"model.d=512"}).model.d, 512);
  EXPECT_EQ(parse("", {"model.d=512", "model.d=768"}).model.d, 768);
}

TEST(Overrides, TakeTextWithOrWithoutQuotes) {
  EXPECT_EQ(parse("", {"data.corpus=my file.txt"}).data.corpus, "my file.txt");
  EXPECT_EQ(parse("", {"data.corpus=\"my file.txt\""}).data.corpus, "my file.txt");
  EXPECT_EQ(parse("", {"data.corpus=2024"}).data.corpus, "2024");
  EXPECT_EQ(parse("", {"data.corpus=a=b#c"}).data.corpus, "a=b#c");
  EXPECT_EQ(parse("", {"data.corpus=C:\\n \"x\""}).data.corpus, "C:\\n \"x\"");
  EXPECT_EQ(parse("", {"data.corpus=line\nbreak"}).data.corpus, "line\nbreak");
  EXPECT_EQ(parse("[data]\ntokenizer = \"a\"", {"data.tokenizer="}).data.tokenizer, "");
  EXPECT_EQ(parse("", {"optim.kind=adamw"}).optim.kind, OptimizerKind::kAdamw);
}

struct Refused {
  const char* text;
  std::vector<std::string> overrides;
  const char* message;
};

void expect_refused(const std::vector<Refused>& cases) {
  for (const auto& [text, overrides, message] : cases) {
    const std::string said = refusal(text, overrides);
    EXPECT_EQ(said, message) << "for\n" << text;
    EXPECT_EQ(said.find('\n'), std::string::npos);
  }
}

TEST(ConfigFile, RefusesUnknownNamesAndNamesTheNearest) {
  expect_refused({
      {"[modle]\nd = 1", {}, "unknown section [modle] in x.toml:1: did you mean [model]?"},
      {"\n\n[xyzzyplugh]",
       {},
       "unknown section [xyzzyplugh] in x.toml:3: the sections are model, data, train, optim, pipeline, subspace, "
       "boundary, link, checkpoint, cluster"},
      {"[model]\nhaeds = 4", {}, "unknown key model.haeds in x.toml:2: did you mean model.heads?"},
      {"[model]\nlr = 0.1", {}, "unknown key model.lr in x.toml:2: did you mean optim.lr?"},
      {"[pipeline]\nxyzzyplugh = 0.1",
       {},
       "unknown key pipeline.xyzzyplugh in x.toml:2: [pipeline] has stages, cuts, schedule"},
      {"[model]\n\"a\\nb\" = 1",
       {},
       "unknown key model.a\\u000ab in x.toml:2: [model] has mode, recipe, d, blocks, heads, kv_heads, mlp_width, "
       "positions, rope_base, position_scale, qk_norm, norm_eps, init_std, table"},
      {"d = 3", {}, "unknown key d in x.toml:1: needs to be in a section, did you mean model.d?"},
      {"", {"model.blokcs=2"}, "unknown key model.blokcs on the command line: did you mean model.blocks?"},
      {"", {"modle.d=2"}, "unknown section [modle] on the command line: did you mean [model]?"},
      {"", {"model.d"}, "--set model.d: needs section.key=value, as in --set model.d=512"},
      {"", {"d=3"}, "--set d=3: needs section.key=value, as in --set model.d=512"},
      {"", {""}, "--set : needs section.key=value, as in --set model.d=512"},
  });
}

TEST(ConfigFile, RefusesWrongTypes) {
  expect_refused({
      {"[model]\n\nd = \"big\"", {}, "model.d = \"big\" in x.toml:3: needs a whole number from 1 to 65536"},
      {"[model]\nd = 2.0", {}, "model.d = 2.0 in x.toml:2: needs a whole number from 1 to 65536"},
      {"[model]\nd = [1]", {}, "model.d = [1] in x.toml:2: needs a whole number from 1 to 65536"},
      {"[model]\nqk_norm = 1", {}, "model.qk_norm = 1 in x.toml:2: needs true or false"},
      {"[model]\nqk_norm = \"true\"", {}, "model.qk_norm = \"true\" in x.toml:2: needs true or false"},
      {"[model]\nnorm_eps = true", {}, "model.norm_eps = true in x.toml:2: needs a number from 1e-30 to 1"},
      {"[model.d]\nx = 1", {}, "model.d = {...} in x.toml:1: needs a whole number from 1 to 65536"},
      {"[data]\ncorpus = 3", {}, "data.corpus = 3 in x.toml:2: needs text that is not empty"},
      {"[data]\ncorpus = 2024-01-01", {}, "data.corpus = a date or time in x.toml:2: needs text that is not empty"},
      {"[optim]\nkind = \"sgd\"", {}, "optim.kind = \"sgd\" in x.toml:2: needs \"adamw\", \"row_adamw\" or \"muon\""},
      {"[optim]\nkind = 1", {}, "optim.kind = 1 in x.toml:2: needs \"adamw\", \"row_adamw\" or \"muon\""},
      {"[pipeline]\ncuts = [1, 3.0]",
       {},
       "pipeline.cuts = [1, 3.0] in x.toml:2: needs a list of at most 4096 whole numbers from 1 to 4096, or \"auto\""},
      {"[pipeline]\ncuts = 4",
       {},
       "pipeline.cuts = 4 in x.toml:2: needs a list of at most 4096 whole numbers from 1 to 4096, or \"auto\""},
      {"[pipeline]\ncuts = \"even\"",
       {},
       "pipeline.cuts = \"even\" in x.toml:2: needs a list of at most 4096 whole numbers from 1 to 4096, or \"auto\""},
      {"[model]\nd = [[1], 2, 3, 4, 5, 6, 7, 8, 9]",
       {},
       "model.d = [[...], 2, 3, 4, 5, 6, 7, 8, ...] in x.toml:2: needs a whole number from 1 to 65536"},
      {"model = 3", {}, "model = 3 in x.toml:1: needs to be the section [model]"},
      {"[[model]]\nd = 3", {}, "model = [{...}] in x.toml:1: needs to be the section [model]"},
      {"", {"model.d=big"}, "model.d = \"big\" on the command line: needs a whole number from 1 to 65536"},
      {"", {"model.d="}, "model.d = \"\" on the command line: needs a whole number from 1 to 65536"},
      {"",
       {"model.d=1\nblocks=2"},
       "model.d = \"1\\u000ablocks=2\" on the command line: needs a whole number from 1 to 65536"},
      {"", {"data.corpus=\xff"}, "data.corpus on the command line: the value is not valid UTF-8 text"},
  });
}

TEST(ConfigFile, TakesAutoCutsFromFileAndCommandLine_TheLastOneWins) {
  for (const auto& config : {parse("[pipeline]\ncuts = \"auto\""), parse("", {"pipeline.cuts=auto"}),
                             parse("[pipeline]\ncuts = [1, 3]", {"pipeline.cuts=\"auto\""})}) {
    EXPECT_TRUE(config.pipeline.auto_cuts);
    EXPECT_TRUE(config.pipeline.cuts.empty());
    EXPECT_EQ(config.pipeline.stages, 4);
    EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{1, 1, 1, 1}));
  }
  const auto again = parse("[pipeline]\ncuts = \"auto\"", {"pipeline.cuts=[1,3]"});
  EXPECT_FALSE(again.pipeline.auto_cuts);
  EXPECT_EQ(again.pipeline.cuts, (std::vector<int64_t>{1, 3}));
}

TEST(ConfigFile, RefusesWhatIsNotToml) {
  for (const char* text : {"[model", "[model]\nd = 1\nd = 2", "[model]\n[model]", "[model]\nd = ", "= 3", "d = \xff",
                           "[train]\nseed = 9223372036854775808"}) {
    const std::string said = refusal(text);
    EXPECT_TRUE(said.starts_with("x.toml:")) << said;
    EXPECT_NE(said.find(": not valid TOML: "), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
  EXPECT_TRUE(refusal("[model]\nd = 1\nd = 2").starts_with("x.toml:3:")) << refusal("[model]\nd = 1\nd = 2");
}

TEST(ConfigFile, RefusesDeepNestingWithoutCrashing) {
  const std::string deep = "[pipeline]\ncuts = " + std::string(200'000, '[');
  EXPECT_NE(refusal(deep).find("not valid TOML"), std::string::npos) << refusal(deep);
}

TEST(ConfigFile, RefusesValuesOutOfRange) {
  struct Case {
    const char* key;
    std::vector<const char*> bad;
    std::vector<const char*> good;
  };
  const std::vector<Case> cases{
      {"model.d", {"0", "-8", "65537"}, {"8"}},
      {"model.blocks", {"0", "4097"}, {"4096"}},
      {"model.heads", {"0", "-1", "1025"}, {"1"}},
      {"model.kv_heads", {"0", "1025"}, {"1"}},
      {"model.mlp_width", {"0", "1048577"}, {"1"}},
      {"model.positions", {"\"none\"", "Rope"}, {"sinusoidal", "rope"}},
      {"model.rope_base", {"0", "-1.0", "inf", "nan"}, {"1e6"}},
      {"model.position_scale", {"-0.1", "101", "nan"}, {"0", "1"}},
      {"model.norm_eps", {"0.0", "9e-31", "nan", "2"}, {"1e-30", "1"}},
      {"model.init_std", {"0", "inf"}, {"0.5"}},
      {"data.corpus", {"", "''"}, {"a"}},
      {"data.vocab", {"259", "16777217"}, {"260", "16777216"}},
      {"data.field", {"", "''"}, {"body"}},
      {"data.val_fraction", {"0", "0.51", "1", "-0.1", "nan"}, {"0.5", "1e-9"}},
      {"train.steps", {"-1", "10000001"}, {"0", "10000000"}},
      {"train.seq_len", {"0", "65537"}, {"1"}},
      {"train.microbatch", {"0", "4097"}, {"1"}},
      {"train.microbatches", {"0", "1025"}, {"1"}},
      {"train.seed", {"-1"}, {"0"}},
      {"train.precision", {"float16"}, {"float64", "float32", "bf16"}},
      {"train.device", {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1000", "cpu:0", "CPU"}, {"cpu", "cuda", "cuda:12"}},
      {"train.threads", {"-1", "4097"}, {"0", "2"}},
      {"train.eval_every", {"-1"}, {"0"}},
      {"train.sample_every", {"-1"}, {"0"}},
      {"train.eval_sequences", {"0"}, {"1"}},
      {"optim.kind", {"adam"}, {"adamw", "muon"}},
      {"optim.lr", {"0", "-0.1", "inf", "nan"}, {"1e-9"}},
      {"optim.adamw_lr", {"0", "nan"}, {"0.1"}},
      {"optim.embedding_lr_scale", {"0", "inf"}, {"1"}},
      {"optim.beta1", {"1", "-0.1", "nan"}, {"0", "0.999"}},
      {"optim.beta2", {"1.0", "-0.1"}, {"0", "0.999"}},
      {"optim.eps", {"0", "1e-50", "9e-31", "nan", "2"}, {"1e-30", "1"}},
      {"optim.momentum", {"1", "-1"}, {"0"}},
      {"optim.weight_decay", {"-0.1", "inf"}, {"0", "0.1"}},
      {"optim.clip", {"-1", "inf"}, {"0"}},
      {"optim.schedule", {"step"}, {"constant", "cosine", "linear", "wsd"}},
      {"optim.warmup", {"-1"}, {"0", "1000"}},
      {"optim.decay_fraction", {"-0.1", "1.1"}, {"0", "1"}},
      {"optim.min_lr_ratio", {"-0.1", "1.1"}, {"0", "1"}},
      {"pipeline.stages", {"0", "-1", "4097"}, {"1", "4"}},
      {"pipeline.cuts", {"[0, 4]", "[-1, 5]", "[4097]", "Auto"}, {"[4]", "[1, 1, 2]", "auto"}},
  };
  for (const auto& [key, bad, good] : cases) {
    for (const char* value : bad) {
      const std::string said = refusal("", {fmt::format("{}={}", key, value)});
      EXPECT_TRUE(said.starts_with(fmt::format("{} = ", key))) << said;
      EXPECT_NE(said.find(" on the command line: needs "), std::string::npos) << said;
    }
    // A rank of 1 fits every d that is tried.
    for (const char* value : good) EXPECT_EQ(refusal("[subspace]\nrank = 1", {fmt::format("{}={}", key, value)}), "");
  }
}

TEST(ConfigFile, RefusesKeysThatDisagree) {
  expect_refused({
      {"[model]\nheads = 2",
       {"model.heads=3"},
       "x.toml and the command line: model.heads = 3: needs to divide model.d = 320"},
      {"[model]\nheads = 3", {}, "x.toml: model.heads = 3: needs to divide model.d = 320"},
      {"[model]\nkv_heads = 3", {}, "x.toml: model.kv_heads = 3: needs to divide model.heads = 4"},
      {"[model]\nkv_heads = 8", {}, "x.toml: model.kv_heads = 8: needs to divide model.heads = 4"},
      {"[model]\nd = 12",
       {},
       "x.toml: model.heads = 4 makes heads of 3 (model.d = 12): needs an even head width for model.positions = "
       "\"rope\""},
      {"[model]\nd = 15\nheads = 5\npositions = \"sinusoidal\"",
       {},
       "x.toml: model.d = 15: needs to be even for model.positions = \"sinusoidal\""},
      {"[pipeline]\nstages = 5",
       {},
       "x.toml: pipeline.stages = 5: more stages than blocks, needs at most model.blocks = 4"},
      {"[pipeline]\nstages = 2\ncuts = [1, 1, 2]",
       {},
       "x.toml: pipeline.cuts = [1, 1, 2]: has 3 entries, needs one per stage (pipeline.stages = 2)"},
      {"[subspace]\nrank = 321", {}, "x.toml: subspace.rank = 321: needs to be at most model.d = 320"},
      {"[subspace]\nfull_rank_tail = 2",
       {},
       "x.toml: pipeline.stages = 4: the last stage needs all 2 blocks of subspace.full_rank_tail, which leaves "
       "model.blocks = 4 for at most 3 in all"},
      {"[subspace]\nfull_rank_tail = 2",
       {"pipeline.cuts=[1,2,1]"},
       "x.toml and the command line: pipeline.cuts = [1, 2, 1]: the last stage needs all 2 blocks of "
       "subspace.full_rank_tail and has 1; cut "
       "after block 2 or earlier, as in [1, 1, 2]"},
      {"[subspace]\nanchor_groups = [2, 2]",
       {},
       "x.toml: subspace.anchor_groups = [2, 2]: needs subspace.anchors = \"stage\", fixed anchors have no groups"},
      {"[subspace]\nfull_rank_tail = 5",
       {},
       "x.toml: subspace.full_rank_tail = 5: needs to be at most model.blocks = 4"},
      {"[subspace]\nanchors = \"stage\"\nanchor_groups = [2, 2]",
       {"pipeline.cuts=[1,3]"},
       "x.toml and the command line: subspace.anchor_groups = [2, 2]: a cut after block 1 would split a group; cut "
       "only between groups"},
      {"[model]\npositions = \"alibi\"",
       {},
       "model.positions = \"alibi\" in x.toml:2: needs \"rope\" or \"sinusoidal\""},
      {"[optim]\nkind = \"row_adamw\"",
       {"model.mode=dense"},
       "x.toml and the command line: optim.kind = \"row_adamw\": needs model.mode = \"subspace\"; a dense model takes "
       "\"adamw\" or "
       "\"muon\""},
      {"[pipeline]\ncuts = [1, 4]", {}, "x.toml: pipeline.cuts = [1, 4]: sums to 5, needs to sum to model.blocks = 4"},
  });
  EXPECT_EQ(refusal("[model]\nmode = \"dense\"\nd = 12\npositions = \"sinusoidal\""),
            "");  // odd heads are fine without RoPE
}

TEST(ConfigFile, WarmupMayOutlastTheRun) { EXPECT_EQ(refusal("[train]\nsteps = 5"), ""); }

TEST(ConfigFile, LoadNamesTheFileThatCannotBeRead) {
  EXPECT_EQ(test::user_error([] { load_config("no/such/file.toml"); }),
            "cannot read no/such/file.toml: No such file or directory");
}

TEST(ConfigFile, LoadRefusesAHugeFile) {
  const test::ScratchFolder folder;
  const auto path = folder / "large.toml";
  std::ofstream(path) << "#";
  std::filesystem::resize_file(path, (1 << 20) + 1);
  EXPECT_EQ(test::user_error([&] { load_config(path); }), path.string() + " has 1MiB: a config file has at most 1MiB");
}

TEST(ConfigFile, CallersDefaultsApplyToKeysMissingInTheFile) {
  const std::vector<std::string> defaults{"link.rate=unlimited", "model.d=64"};
  EXPECT_EQ(parse_config("", "x", {}, defaults).link.rate, "unlimited");
  EXPECT_EQ(parse_config("[link]\nrate = \"5mbit\"", "x", {}, defaults).link.rate, "5mbit");
  const std::vector<std::string> overrides{"link.rate=7mbit"};
  EXPECT_EQ(parse_config("[link]\nrate = \"5mbit\"", "x", overrides, defaults).link.rate, "7mbit");
  EXPECT_EQ(parse_config("", "x", {}, defaults).model.d, 64);
}

}  // namespace
}  // namespace thinpipe
