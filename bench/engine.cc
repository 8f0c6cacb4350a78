// bench engine: how fast one machine trains whole models, against PyTorch and against the time that the matrix products
// of the model would take by themselves, all measured in one run.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
#include "base/rng.h"
#include "base/work_line.h"
#include "bench/bench.h"
#include "bench/debian13.h"
#include "bench/engine_script.h"
#include "config/config_file.h"
#include "config/model_spec.h"
#include "model/fill.h"
#include "model/stage.h"
#include "model/threads.h"
#include "optim/optimizer.h"
#include "pipeline/batches.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;

struct EngineShape {
  int64_t d, blocks, length, tokens;

  std::string name() const { return fmt::format("d{} L{} T{}", d, blocks, length); }
};

ModelConfig model_of(const EngineShape& shape, ModelMode mode) {
  ModelConfig model;
  model.mode = mode;
  model.d = shape.d;
  model.blocks = shape.blocks;
  model.heads = model.kv_heads = std::max<int64_t>(1, shape.d / 64);
  model.mlp_width = default_mlp_width(shape.d);
  model.table.clear();  // any table takes the same time
  model.subspace.rank = shape.d / 16;
  return model;
}

template <class Work>
double seconds_of(const Work& work) {
  const SystemClock clock;
  const auto start = clock.now();
  work();
  return seconds(clock.now() - start);
}

struct StepSeconds {
  double pass = 1e9, update = 1e9;
  double total() const { return pass + update; }
};

// Steps of a model at a stretch; the first one warms up.
constexpr int64_t kStepsAtOnce = 2;

// The least seconds of a step of the whole model on these microbatches.
StepSeconds time_step(const ModelConfig& model, OptimizerKind kind, const std::vector<TokenBatch>& batches,
                      int64_t vocab, int64_t steps) {
  Stage stage(model, vocab, whole_model(model), Precision::kFloat32, 1, at::Device("cpu"));
  OptimConfig optim;
  optim.kind = kind;
  Optimizer optimizer(optim, 1000, stage.parameters(), /*seed=*/1);
  StepSeconds least;
  for (int64_t step = 0; step < steps; ++step) {
    const double pass = seconds_of([&] {
      stage.parameters().zero_grad();
      for (const auto& batch : batches) stage.backward(stage.forward(batch, {}, 1e-5), {});
    });
    const double update = seconds_of([&] {
      optimizer.squared_norm();
      optimizer.apply(step, 1.0);
    });
    least = {std::min(least.pass, pass), std::min(least.update, update)};
  }
  return least;
}

// The matrices that rows of the stream are multiplied by, as (in, out).
std::vector<std::pair<int64_t, int64_t>> products_of(const ModelConfig& model, int64_t vocab) {
  std::vector<std::pair<int64_t, int64_t>> products;
  for (const auto& spec : model_spec(model, vocab, whole_model(model))) {
    if (spec.kind == ParameterKind::kMatrix || spec.kind == ParameterKind::kHead)
      products.emplace_back(spec.rows(), spec.columns());
  }
  return products;
}

// Operations of a dense model's step that no implementation can do without: for every weight a product forward and two
// backward; in attention, over half of the pairs of positions, two products forward and four backward.
double useful_operations(const ModelConfig& model, const EngineShape& shape, int64_t vocab) {
  const auto tokens = static_cast<double>(shape.tokens);
  double operations = 0;
  for (const auto& [in, out] : products_of(model, vocab)) operations += 6 * tokens * static_cast<double>(in * out);
  return operations + 6 * tokens * static_cast<double>(shape.length * shape.d * shape.blocks);
}

// Operations per second of the model's own products, one after the other, by BLAS with its own threads.
double sgemm_rate(const ModelConfig& model, const EngineShape& shape, int64_t vocab) {
  double operations = 0, total_s = 0;
  std::map<std::pair<int64_t, int64_t>, double> least;
  for (const auto& product : products_of(model, vocab)) {
    const auto [in, out] = product;
    const int64_t rows = out == vocab ? std::min(shape.tokens, kHeadRowsAtOnce) : shape.tokens;
    const double each = 6 * static_cast<double>(rows * in * out);
    if (!least.contains(product)) {
      const auto x = fill_random(CounterRng(1, "x"), {rows, in}, 1.0, at::kFloat),
                 w = fill_random(CounterRng(1, "w"), {in, out}, 1.0, at::kFloat),
                 dy = fill_random(CounterRng(1, "dy"), {rows, out}, 1.0, at::kFloat);
      auto dw = at::zeros({in, out}, at::kFloat);
      double best = 1e9;
      for (int64_t time = 0; time <= kStepsAtOnce; ++time) {
        best = std::min(best, seconds_of([&] {
                          at::mm(x, w);
                          at::mm(dy, w.t());
                          dw.addmm_(x.t(), dy);
                        }));
      }
      least[product] = best;
    }
    operations += each;
    total_s += least[product];
  }
  return operations / total_s;
}

// Seconds of a step in PyTorch, run by this command; none if it has none.
std::optional<Json> pytorch_step(const std::string& python, const ModelConfig& model, const EngineShape& shape,
                                 int64_t vocab, int threads) {
  const Json told{
      {"d", model.d},    {"blocks", model.blocks}, {"heads", model.heads}, {"mlp", model.mlp_width},
      {"vocab", vocab},  {"length", shape.length}, {"threads", threads},   {"sequences", shape.tokens / shape.length},
      {"steps", kStepsAtOnce}};
  const auto script = data_dir() / "bench/engine.py";
  make_directories(script.parent_path()).take();
  write_file_atomically(script, std::string(engine_script())).take();
  // Our own settings of libraries are not those of a user of PyTorch.
  const auto command = fmt::format("env -u GLIBC_TUNABLES -u GOMP_SPINCOUNT {} - '{}' <'{}' 2>/dev/null", python,
                                   told.dump(), script.string());
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  char buffer[256];
  while (pipe && std::fgets(buffer, sizeof buffer, pipe.get()) != nullptr) text += buffer;
  auto answer = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("step_s")) return std::nullopt;
  return answer;
}

class Engine {
 public:
  explicit Engine(const BenchEngineOptions& options)
      : options_(options),
        python_(options.torch2 ? debian13_python() : fmt::format("'{}'", options.python)),
        corpus_(prepare_corpus(DataConfig{}, data_dir())) {}

  void run(bool json) {
    std::vector<EngineShape> shapes{
        {256, 4, 256, 2048}, {512, 8, 256, 2048}, {768, 12, 512, 2048}, {512, 4, 2048, 2048}};
    if (options_.quick) shapes = {{64, 2, 32, 64}};
    std::erase_if(shapes, [&](const auto& shape) { return !wanted(shape.name()); });
    if (shapes.empty() && !wanted(kMuonShare) && !wanted(kMuonShareLarge))
      throw UserError(
          fmt::format("--only {}: no part is called so; parts are \"d512 L8 T256\" and others", options_.only));
    fmt::print("{:<16} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}\n", "tokens/s", "threads", "PyTorch", "dense",
               "subspace", "dense m.", "subsp. m.", "of sgemm", "GFLOP/s");
    std::optional<WorkLine> line;
    line.emplace("measuring", "parts", 2 * shapes.size() * static_cast<size_t>(options_.rounds) + 1);
    // Round after round, so that a machine that is slower for a minute is slower for everything that is compared.
    std::vector<std::array<Fastest, 2>> fastest(shapes.size());
    for (int64_t round = 0; round < options_.rounds; ++round) {
      for (size_t i = 0; i < shapes.size(); ++i) {
        for (const int threads : {1, 2}) {
          measure(shapes[i], threads, fastest[i][static_cast<size_t>(threads) - 1]);
          line->add();
        }
      }
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      for (const int threads : {1, 2}) tell(shapes[i], threads, fastest[i][static_cast<size_t>(threads) - 1]);
      note_thread_gains(shapes[i], fastest[i][0], fastest[i][1]);
    }
    use_threads(1);
    note_muon_shares();
    line->add();
    line.reset();
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    least_["peak_memory_mb"] = static_cast<double>(usage.ru_maxrss) / 1024;
    fmt::print("\n");
    for (const auto& [name, value] : least_.items()) fmt::print("{:<24} {:.3f}\n", name, value.get<double>());
    fmt::print(
        "Ratios are the least over the shapes with d >= 512; m.: with Muon, else AdamW. of sgemm: useful operations of "
        "a\n"
        "dense step over what the model's products alone would do in that time.\n");
    if (!torch_) fmt::print("{} has no PyTorch (Debian: python3-torch), so nothing is compared with it.\n", python_);
    least_["pytorch"] = torch_ ? torch_->at("version") : Json();
    least_["pytorch_with"] = torch_ ? torch_->at("with") : Json();
    least_["rows"] = rows_;
    if (json) fmt::print("{}\n", least_.dump());
  }

 private:
  static constexpr const char *kMuonShare = "muon_share", *kMuonShareLarge = "muon_share_large";
  bool wanted(std::string_view part) const { return part.find(options_.only) != std::string_view::npos; }

  // Keeps the least value of a field over the shapes that count.
  void note(const EngineShape& shape, const std::string& name, double value) {
    if (shape.d < 512 && !options_.quick) return;
    if (!least_.contains(name) || least_[name].get<double>() > value) least_[name] = value;
  }

  // The microbatches of the first step.
  std::vector<TokenBatch> batches_of(const TrainConfig& train) const {
    CorpusBatches source(corpus_, train);
    std::vector<TokenBatch> batches;
    for (int64_t m = 0; m < train.microbatches; ++m) batches.push_back(source.training(0, m).take());
    return batches;
  }
  // One microbatch.
  std::vector<TokenBatch> batches_of(const EngineShape& shape) const {
    TrainConfig train;
    train.microbatch = shape.tokens / shape.length;
    train.microbatches = 1;
    train.seq_len = shape.length;
    return batches_of(train);
  }

  // The least seconds of a step of each kind, and the highest rate of sgemm.
  struct Fastest {
    double torch = 1e9, dense = 1e9, subspace = 1e9, dense_muon = 1e9, subspace_muon = 1e9, sgemm = 0;
  };

  void measure(const EngineShape& shape, int threads, Fastest& fastest) {
    use_threads(threads);
    const auto batches = batches_of(shape);
    const auto dense = model_of(shape, ModelMode::kDense), subspace = model_of(shape, ModelMode::kSubspace);
    const auto time = [&](const ModelConfig& model, OptimizerKind kind, double& least) {
      least = std::min(least, time_step(model, kind, batches, corpus_.vocab, kStepsAtOnce).total());
    };
    fastest.sgemm = std::max(fastest.sgemm, sgemm_rate(dense, shape, corpus_.vocab));
    time(dense, OptimizerKind::kAdamw, fastest.dense);
    time(subspace, OptimizerKind::kAdamw, fastest.subspace);
    time(dense, OptimizerKind::kMuon, fastest.dense_muon);
    time(subspace, OptimizerKind::kMuon, fastest.subspace_muon);
    torch_ = pytorch_step(python_, dense, shape, corpus_.vocab, threads);
    if (torch_) fastest.torch = std::min(fastest.torch, torch_->at("step_s").get<double>());
  }

  void tell(const EngineShape& shape, int threads, const Fastest& fastest) {
    const double share = useful_operations(model_of(shape, ModelMode::kDense), shape, corpus_.vocab) / fastest.dense /
                         fastest.sgemm;
    const auto tokens = static_cast<double>(shape.tokens);
    above_live_line([&] {
      fmt::print("{:<16} {:>7} {:>9} {:>9.0f} {:>9.0f} {:>9.0f} {:>9.0f} {:>9.2f} {:>10.1f}\n", shape.name(), threads,
                 torch_ ? fmt::format("{:.0f}", tokens / fastest.torch) : "-", tokens / fastest.dense,
                 tokens / fastest.subspace, tokens / fastest.dense_muon, tokens / fastest.subspace_muon, share,
                 fastest.sgemm / 1e9);
      std::fflush(stdout);
    });
    rows_.push_back({{"shape", shape.name()},
                     {"threads", threads},
                     {"dense_tokens_per_s", tokens / fastest.dense},
                     {"subspace_tokens_per_s", tokens / fastest.subspace},
                     {"dense_muon_tokens_per_s", tokens / fastest.dense_muon},
                     {"subspace_muon_tokens_per_s", tokens / fastest.subspace_muon},
                     {"pytorch_tokens_per_s", torch_ ? Json(tokens / fastest.torch) : Json()},
                     {"sgemm_gflops", fastest.sgemm / 1e9},
                     {"share_of_sgemm", share}});
    note(shape, fmt::format("share_of_sgemm_{}", threads), share);
    if (!torch_) return;
    note(shape, fmt::format("dense_over_pytorch_{}", threads), fastest.torch / fastest.dense);
    note(shape, fmt::format("subspace_over_pytorch_{}", threads), fastest.torch / fastest.subspace);
  }

  // What the second thread gains, over what it gains for the products alone.
  void note_thread_gains(const EngineShape& shape, const Fastest& one, const Fastest& two) {
    const double sgemm = two.sgemm / one.sgemm;
    note(shape, "thread_gain_dense", one.dense / two.dense / sgemm);
    note(shape, "thread_gain_subspace", one.subspace / two.subspace / sgemm);
  }

  // The share of Muon's update in a step of a subspace model, on one thread.
  void note_muon_share(const char* name, const ModelConfig& model, const std::vector<TokenBatch>& batches) {
    const auto step = time_step(model, OptimizerKind::kMuon, batches, corpus_.vocab, 1 + options_.rounds);
    least_[name] = step.update / step.total();
  }
  void note_muon_shares() {
    if (wanted(kMuonShare)) {
      auto config = parse_config("", "the default run");
      config.model.table.clear();
      note_muon_share(kMuonShare, config.model, batches_of(config.train));
    }
    if (!wanted(kMuonShareLarge)) return;
    const EngineShape shape = options_.quick ? EngineShape{64, 2, 32, 64} : EngineShape{1024, 4, 256, 4096};
    note_muon_share(kMuonShareLarge, model_of(shape, ModelMode::kSubspace), batches_of(shape));
  }

  const BenchEngineOptions& options_;
  const std::string python_;  // the command that runs a script
  const PreparedCorpus corpus_;
  Json least_ = Json::object(), rows_ = Json::array();
  std::optional<Json> torch_;  // the last answer
};

}  // namespace

void bench_engine(const BenchEngineOptions& options, bool json) { Engine(options).run(json); }

}  // namespace thinpipe
