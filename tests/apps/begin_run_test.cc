// A run that begins from given weights or with a given token table. With the weights and table of the seed it equals
// the ordinary run, bit for bit, also on machines that download both. What does not fit is refused with one line and
// leaves nothing.
#include "run/begin_run.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/running_program.h"
#include "config/config_file.h"
#include "model/fixed_table.h"
#include "pipeline/in_process.h"
#include "pipeline/stage_worker.h"
#include "pipeline/table_file.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::RunningProgram;
using test::small_run;
using Json = nlohmann::json;

class BeginRun : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_small_run(program_);
    // Weights are given here, and the table if there is one: by default it comes from the seed.
    auto config = read_file(program_ / "small.toml").take();
    config.insert(config.find("d = 32"), "table = \"\"\n");
    test::write_file(program_ / "small.toml", config);
    use({});
  }

  void use(const Arguments& settings) {
    config_ = load_config(program_ / "small.toml", settings);
    config_.data.corpus = (program_ / "corpus.txt").string();
    corpus_ = prepare_corpus(config_.data, program_.data());
  }

  // Made by the config's seed.
  FirstWeights seeds_weights() const {
    const auto blocks = config_.model.blocks;
    Stage stage(config_.model, corpus_.vocab, {0, blocks, blocks}, config_.train.precision, config_.train.seed,
                at::Device("cpu"));
    FirstWeights weights;
    for (const auto& parameter : stage.parameters().all()) {
      weights.parameters.emplace_back(parameter.name, parameter.value.clone());
    }
    if (auto* side = stage.subspace()) weights.basis = side->basis().u;
    return weights;
  }
  at::Tensor seeds_table() const {
    return FixedTable(config_.train.seed, corpus_.vocab, config_.model.d, config_.model.subspace.anchor_std,
                      at::TensorOptions().dtype(at::kFloat))
        .whole();
  }

  fs::path begin(const std::string& name, const FirstWeights& weights) {
    return begin_run_from(program_ / name, config_, corpus_, weights, "the seed, by a test").take();
  }

  test::RunResult ordinary(const Arguments& settings = {}) {
    const auto outcome = program_.run(small_run(program_ / "expected", settings, {"--in-process"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return test::result_of(program_ / "expected");
  }

  void expect_trains_on(const fs::path& run, const test::RunResult& expected) {
    const auto outcome = program_.run({"train", "--resume", run.string()});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
    EXPECT_EQ(outcome.err, "");
    test::expect_same_result(run, expected);
  }

  std::string refusal(const FirstWeights& weights) {
    const auto before = program_.contents();
    const auto run = begin_run_from(program_ / "refused", config_, corpus_, weights, "");
    EXPECT_EQ(program_.contents(), before) << "nothing stays";
    if (run.ok()) return "(accepted)";
    EXPECT_EQ(run.error().message.find('\n'), std::string::npos);
    return run.error().message;
  }

  test::Program program_;
  RunConfig config_;
  PreparedCorpus corpus_;
};

TEST_F(BeginRun, FromTheSeedsWeights_IsTheOrdinaryRun) {
  const auto expected = ordinary();
  const auto run = begin("run", seeds_weights());
  EXPECT_EQ(run, program_ / "run");
  const auto checkpoint = newest_checkpoint(run).take();
  EXPECT_EQ(checkpoint.manifest.id, (CheckpointId{0, 0}));
  const auto shown = program_.run({"show", run.string()}).out;
  for (const char* part : {"origin: the seed, by a test\n", "progress: step 0/20", "checkpoints of steps: 0\n"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << shown;
  }
  for (const auto& path : program_.contents()) EXPECT_EQ(path.find(".begin"), std::string::npos) << path;
  expect_trains_on(run, expected);
}

TEST_F(BeginRun, DenseFromTheSeedsWeights_IsTheOrdinaryRun) {
  const Arguments dense{"model.mode=dense", "pipeline.stages=2"};
  const auto expected = ordinary(dense);
  use(dense);
  expect_trains_on(begin("run", seeds_weights()), expected);
}

TEST_F(BeginRun, TrainableAnchorsOfAnotherType_IsTheOrdinaryRun) {
  const Arguments anchors{"subspace.anchors=stage", "subspace.previous=table", "pipeline.stages=2"};
  const auto expected = ordinary(anchors);
  use(anchors);
  auto weights = seeds_weights();
  for (auto& [name, tensor] : weights.parameters) tensor = tensor.to(at::kDouble);
  expect_trains_on(begin("run", weights), expected);
}

TEST_F(BeginRun, WithoutAFolder_IsNamedByTheTime) {
  const auto run = begin_run_from("", config_, corpus_, seeds_weights(), "").take();
  EXPECT_EQ(run.parent_path(), program_.data() / "runs");
  EXPECT_NE(program_.run({"runs"}).out.find(run.filename().string() + "  step 0/20"), std::string::npos);
}

// Weights that no seed makes, so that falling back on the seed's would show.
TEST_F(BeginRun, KilledBeforeAnyCheckpoint_ReturnsToTheGivenWeights) {
  use({"checkpoint.every=0", "link.delay=60ms"});
  auto weights = seeds_weights();
  for (auto& [name, tensor] : weights.parameters) tensor = tensor.mul(1.5);
  const auto whole = begin("whole", weights);
  auto outcome = program_.run({"train", "--resume", whole.string(), "--set", "link.delay=0ms"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto expected = test::result_of(whole);
  EXPECT_NE(expected, ordinary({"checkpoint.every=0"}));

  const auto run = begin("run", weights);
  {
    RunningProgram running(program_, {"train", "--resume", run.string()});
    ASSERT_TRUE(running.wait_until("some steps are done", [&] {
      return test::metrics_lines(run) >= 4 || !running.running();
    }) && running.running());
    running.signal(SIGKILL);
    (void)running.wait();
    ASSERT_TRUE(running.wait_until("its children are gone", [&] { return test::processes_of(run).empty(); }));
  }
  expect_trains_on(run, expected);
}

TEST_F(BeginRun, WeightsMissing_IsRefused) {
  const auto run = begin("run", seeds_weights());
  fs::remove(run / "checkpoints/step-00000000-g0/block-002.safetensors");
  const auto outcome = program_.run({"train", "--resume", run.string()});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  test::expect_one_line(outcome, {run.string(), "began from given weights (the seed, by a test)", "whole"});
}

TEST_F(BeginRun, BeforeItsFirstStep_CutsCanBeChanged) {
  const Arguments settings{"pipeline.stages=2"};
  const auto expected = ordinary(settings);
  const auto run = begin("run", seeds_weights());
  const auto outcome = program_.run({"train", "--resume", run.string(), "--set", "pipeline.stages=2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  // Equal cuts from the first step on give equal bits.
  test::expect_same_result(run, expected);
}

TEST_F(BeginRun, WeightsThatDoNotFitTheModel_AreRefused) {
  const auto good = seeds_weights();
  using Change = std::function<void(FirstWeights&)>;
  const auto named = [](FirstWeights& weights, const std::string& name) -> at::Tensor& {
    for (auto& [found, tensor] : weights.parameters) {
      if (found == name) return tensor;
    }
    throw UserError("no " + name);
  };
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](auto& w) { w.parameters.erase(w.parameters.begin() + 4); },
       "parameter '" + good.parameters[4].first + "' is not given"},
      {[](auto& w) { w.parameters.emplace_back("blocks.4.wqkv", at::zeros({1})); },
       "parameter 'blocks.4.wqkv' is not one of this model"},
      {[](auto& w) { w.parameters.push_back(w.parameters.front()); },
       "parameter 'embedding_coordinates' is given twice"},
      {[&](auto& w) { named(w, "head") = named(w, "head").t(); },
       "parameter 'head' is (300, 32) of Float, needs (32, 300)"},
      {[&](auto& w) { named(w, "head") = named(w, "head").to(at::kLong); }, "parameter 'head' is (32, 300) of Long"},
      {[&](auto& w) { named(w, "final_norm") = at::Tensor(); }, "parameter 'final_norm' is undefined"},
      {[&](auto& w) { named(w, "final_norm")[3] = std::numeric_limits<float>::quiet_NaN(); },
       "parameter 'final_norm' holds numbers that are not finite"},
      // This is infinite in float32, which the run uses.
      {[&](auto& w) {
         named(w, "head") = at::full({32, 300}, 1e300, at::kDouble);
       },
       "parameter 'head' holds numbers that are not finite"},
      {[](auto& w) { w.basis = at::Tensor(); }, "a subspace model needs its basis"},
      {[](auto& w) { w.basis = w.basis.to(at::kFloat); }, "the basis is (32, 8) of Float, needs (32, 8) of Double"},
      {[](auto& w) { w.basis = w.basis.t(); }, "the basis is (8, 32)"},
      {[](auto& w) { w.basis = w.basis.to(at::kFloat).to(at::kDouble); }, "the basis is not orthonormal"},
      {[](auto& w) { w.basis = w.basis * std::numeric_limits<double>::quiet_NaN(); }, "the basis is not orthonormal"},
      {[](auto& w) {
         w.table = at::zeros({300, 31});
       },
       "the token table is (300, 31) of Float, needs (300, 32)"},
      {[](auto& w) {
         w.table = at::zeros({300, 32}, at::kDouble);
       },
       "the token table is (300, 32) of Double"},
      {[](auto& w) {
         w.table = at::full({300, 32}, std::numeric_limits<float>::infinity());
       },
       "the token table holds numbers that are not finite"},
  };
  for (const auto& [change, message] : cases) {
    SCOPED_TRACE(message);
    auto weights = seeds_weights();
    change(weights);
    const auto said = refusal(weights);
    EXPECT_EQ(said.find(message), 0u) << said;
  }
  auto config = config_;
  config_.model.table = std::string(64, 'a');
  EXPECT_NE(refusal(good).find("the table was not given"), std::string::npos);
  config_ = config;

  use({"model.mode=dense"});
  auto dense = seeds_weights();
  dense.basis = good.basis;
  EXPECT_EQ(refusal(dense), "a dense model has no basis, and one was given");
  dense.basis = at::Tensor();
  dense.table = at::zeros({300, 32});
  EXPECT_EQ(refusal(dense), "a dense model has no token table, and one was given");
}

TEST_F(BeginRun, NonEmptyFolder_IsRefusedAndUnchanged) {
  test::write_file(program_ / "full/something", "x");
  const auto before = program_.contents();
  const auto run = begin_run_from(program_ / "full", config_, corpus_, seeds_weights(), "");
  ASSERT_FALSE(run.ok());
  EXPECT_NE(run.error().message.find("full is not empty; give another folder"), std::string::npos);
  EXPECT_EQ(program_.contents(), before);
}

TEST_F(BeginRun, SeveralAtOnceInOneFolder_OnlyOneBegins) {
  const auto weights = seeds_weights();
  std::vector<std::future<bool>> tries;
  for (int i = 0; i < 4; ++i) {
    tries.push_back(std::async(std::launch::async,
                               [&] { return begin_run_from(program_ / "one", config_, corpus_, weights, "").ok(); }));
  }
  int begun = 0;
  for (auto& one : tries) begun += one.get() ? 1 : 0;
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(newest_checkpoint(program_ / "one").take().manifest.id.step, 0);
  for (const auto& entry : fs::directory_iterator(program_ / "."))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".one")) << entry.path();
}

// ---- the token table ----

class TableOfARun : public BeginRun {
 protected:
  // A run with the seed's table as a file.
  fs::path begin_with_table(const std::string& name) {
    auto weights = seeds_weights();
    weights.table = seeds_table();
    return begin(name, weights);
  }
  std::string hash_of(const fs::path& run) const { return load_config(run / "config.toml").model.table; }
  fs::path table_of(const fs::path& run) const { return table_path(run, hash_of(run)); }

  void expect_refused(const fs::path& run, const std::string& reason) {
    const auto outcome = program_.run({"train", "--resume", run.string()});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    test::expect_one_line(outcome, {table_of(run).string(), reason});
    EXPECT_TRUE(test::processes_of(run).empty());
  }
};

TEST_F(TableOfARun, TableOfTheSeed_GivesTheSameBitsAsNoTable) {
  const auto expected = ordinary();
  const auto run = begin_with_table("run");
  EXPECT_EQ(hash_of(run), FixedTable(seeds_table(), seeds_table().options()).hash());
  EXPECT_NE(program_.run({"show", run.string()}).out.find("token table: " + hash_of(run).substr(0, 12)),
            std::string::npos);
  expect_trains_on(run, expected);
  EXPECT_TRUE(fs::exists(table_path(run / "workers/3", hash_of(run)))) << "a worker has it in its own folder";
}

TEST_F(TableOfARun, InOneProcess_GivesTheSameBitsAsNoTable) {
  const auto expected = ordinary();
  const auto run = program_ / "one";
  const auto hash = save_table(run, seeds_table()).take();
  const auto outcome = program_.run(small_run(run, {"model.table=" + hash}, {"--in-process"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  test::expect_same_result(run, expected);
  // And as processes from the start.
  const auto other = program_ / "many";
  (void)save_table(other, seeds_table()).take();
  const auto many = program_.run(small_run(other, {"model.table=" + hash}));
  EXPECT_EQ(many.exit_code, 0) << many.err;
  test::expect_same_result(other, expected);
}

TEST_F(TableOfARun, Missing_NewRunIsRefused) {
  const std::string hash(64, 'b');
  const auto before = program_.contents();
  const auto fails = [&](const Arguments& arguments, const Arguments& parts) {
    const auto outcome = program_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    test::expect_one_line(outcome, parts);
  };
  for (const Arguments& more : {Arguments{}, Arguments{"--in-process"}}) {
    Arguments arguments{"train", "small.toml", "--set", "model.table=" + hash};
    arguments.insert(arguments.end(), more.begin(), more.end());
    fails(arguments, {"model.table", "--run-dir"});
    fails(small_run(program_ / "new", {"model.table=" + hash}, more), {"is missing", hash});
  }
  EXPECT_FALSE(fs::exists(program_ / "new"));
  EXPECT_FALSE(fs::exists(program_.data() / "runs"));
}

TEST_F(TableOfARun, IsDownloadedByAMachineThatJoins) {
  const auto expected = ordinary();
  const auto run = begin_with_table("run");
  const auto hash = hash_of(run);
  RunningProgram serve(program_, {"serve", "--run", run.string(), "--listen", "127.0.0.1"});
  ASSERT_TRUE(serve.wait_for_output("to let machines join")) << serve.err();
  const auto text = program_.run({"invite", "--uses", "4", run.string()}).out;
  std::vector<std::unique_ptr<RunningProgram>> machines;
  for (int i = 0; i < 4; ++i) {
    machines.push_back(std::make_unique<RunningProgram>(
        program_, Arguments{"join", text, "--listen", "127.0.0.1", "--name", fmt::format("w{}", i)},
        program_ / fmt::format("home-{}", i) / "data"));
  }
  for (auto& machine : machines) {
    const auto outcome = machine->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }
  EXPECT_EQ(serve.wait().exit_code, 0) << serve.err();
  int copies = 0;
  for (const auto& path : program_.contents()) {
    if (path.starts_with("home-") && path.ends_with("tables/" + hash + ".safetensors")) {
      ++copies;
      EXPECT_EQ(read_file(program_ / path).take(), read_file(table_of(run)).take());
    }
    EXPECT_FALSE(path.ends_with(".part")) << path;
  }
  EXPECT_EQ(copies, 4);
  test::expect_same_result(run, expected);
}

// A damaged copy and an interrupted download are repaired.
TEST_F(TableOfARun, DamagedCopy_IsFetchedAgain) {
  const auto expected = ordinary();
  const auto run = begin_with_table("run");
  const auto hash = hash_of(run);
  const auto copy = [&](int worker) { return table_path(run / fmt::format("workers/{}", worker), hash); };
  const auto bytes = read_file(table_of(run)).take();
  auto damaged = bytes;
  damaged[damaged.size() / 2] ^= 1;
  test::write_file(copy(0), damaged);
  test::write_file(copy(1), "no table");
  // An unfinished download with the right bytes, beside an empty copy.
  fs::create_directories(run / "workers/2/tables");
  const auto sha = sha256_hex(bytes);
  test::write_file(run / "workers/2/tables" / (sha + ".part"), bytes.substr(0, 1000));
  test::write_file(copy(2), "");
  expect_trains_on(run, expected);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(read_file(copy(i)).take(), bytes) << i;
  EXPECT_FALSE(fs::exists(run / "workers/2/tables" / (sha + ".part")));
}

TEST_F(TableOfARun, DifferentFromTheNamedOne_StopsTheStart) {
  const auto run = begin_with_table("run");
  const auto path = table_of(run);
  const auto bytes = read_file(path).take();
  auto damaged = bytes;
  damaged[damaged.size() - 9] ^= 1;
  test::write_file(path, damaged);
  expect_refused(run, "its rows have the hash");
  save_tensors(path, {{"t_fixed", seeds_table().narrow(0, 0, 299)}}).take();
  expect_refused(run, "is [299, 32] of F32, needs [300, 32] of F32");
  save_tensors(path, {{"t_fixed", seeds_table().mul(2)}}).take();
  expect_refused(run, "its rows have the hash");
  fs::remove(path);
  EXPECT_NE(program_.run({"show", run.string()}).out.find("(missing)"), std::string::npos);
  expect_refused(run, "is missing, but model.table names it");
  test::write_file(path, bytes);
  EXPECT_EQ(program_.run({"train", "--resume", run.string()}).exit_code, 0);
}

}  // namespace
}  // namespace thinpipe
