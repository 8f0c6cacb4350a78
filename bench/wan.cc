// bench wan: how fast a pipeline is over a slow link. Every cell is a real run: a coordinator and two stage processes
// with one thread each, gRPC between them, the built-in shaper on both directions.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/units.h"
#include "base/work_line.h"
#include "bench/bench.h"
#include "boundary/sizes.h"
#include "config/config_file.h"
#include "lab/schedule_bound.h"
#include "net/packet.h"
#include "pipeline/run_folder.h"
#include "run/supervisor.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

constexpr int64_t kStages = 2;
constexpr uint64_t kRuns = 9;
// The slow link is chosen so that dense fp32 falls to 1 / this of its unlimited speed.
constexpr double kSlowdown = 16;

struct Line {
  uint64_t rate_bits_per_s = 0;  // 0: unlimited
  double delay_s = 0;

  std::string name() const {
    return format_rate(rate_bits_per_s) + (delay_s > 0 ? fmt::format(" + {:.0f}ms", 1000 * delay_s) : "");
  }
};

struct Measured {
  double step_s = 0;   // median time from commit to commit
  double bound_s = 0;  // critical path with the measured compute and this line, plus the update
  double tokens_per_s = 0;
  double forward_bytes = 0, backward_bytes = 0;  // per token
  double wire_overhead = 0;                      // bytes the kernel sent / payload
  double wait_share = 0;                         // fraction of the time, mean over stages
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<nlohmann::json> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::json::parse(line);
    if (json.contains("loss") || json.contains("stages")) lines.push_back(std::move(json));
  }
  return lines;
}

RunConfig config_of(const BenchWanOptions& options, ModelMode mode, Pack pack) {
  RunConfig config;
  config.model.mode = mode;
  config.model.d = options.d;
  config.model.blocks = options.blocks;
  config.model.heads = 8;
  config.model.kv_heads = 8;
  config.model.mlp_width = default_mlp_width(options.d);
  config.model.subspace.rank = options.rank;
  config.model.subspace.update_every = 0;
  config.boundary.pack = pack;
  config.train.seq_len = options.length;
  config.train.microbatch = options.sequences;
  config.train.microbatches = options.microbatches;
  // A run ends with a pass over the whole validation split: over a slow line, a larger one would take minutes.
  config.data.val_fraction = 0.005;
  config.train.eval_every = config.train.sample_every = 0;
  config.train.eval_sequences = 1;
  config.pipeline.stages = kStages;
  config.pipeline.cuts = {options.blocks - 1, 1};  // the head weighs about as much as two blocks
  config.checkpoint.every = 0;
  return config;
}

// The bound of one step: the critical path of the schedule that was used, with this run's compute times.
double bound_of(const RunConfig& config, const std::vector<nlohmann::json>& timing, size_t first, const Line& line,
                int64_t vocab) {
  const auto mean = [&](size_t stage, const char* key) {
    double sum = 0;
    for (size_t i = first; i < timing.size(); ++i) sum += timing[i]["stages"][stage][key].get<double>();
    return sum / static_cast<double>(timing.size() - first);
  };
  const auto sizes = boundary_sizes(config, vocab);
  const auto link = [&](size_t bytes) {
    const double bits = 8.0 * static_cast<double>(bytes + kFrameOverheadBytes);
    return LinkTimes{line.rate_bits_per_s > 0 ? bits / static_cast<double>(line.rate_bits_per_s) : 0, line.delay_s};
  };
  const auto microbatches = static_cast<double>(config.train.microbatches);
  ScheduleTimes times;
  double update_s = 0, compute_s = 0;
  for (size_t stage = 0; stage < kStages; ++stage) {
    times.forward_s.push_back(mean(stage, "forward_s") / microbatches);
    times.backward_s.push_back(mean(stage, "backward_s") / microbatches);
    update_s = std::max(update_s, mean(stage, "update_s"));
    compute_s += (times.forward_s.back() + times.backward_s.back()) / kStages;
  }
  times.forward.push_back(link(sizes.forward));
  times.backward.push_back(link(sizes.backward));
  const double hop_s = (times.forward[0].transfer_s + times.backward[0].transfer_s) / 2 + line.delay_s;
  const auto warmup = covering_warmup(kStages, config.train.microbatches, compute_s, hop_s);
  std::vector<std::vector<Pass>> stages;
  for (size_t stage = 0; stage < kStages; ++stage)
    stages.push_back(passes(ScheduleKind::k1f1b, stage, kStages, config.train.microbatches, warmup));
  return schedule_bound_s(stages, times) + update_s;
}

class Bench {
 public:
  explicit Bench(const BenchWanOptions& options)
      : options_(options), silence_(std::fopen("/dev/null", "w"), &std::fclose) {
    folder_ = data_dir() / "bench" / fmt::format("wan-{}", ::getpid());
    make_directories(folder_).take();
  }
  ~Bench() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // Until the last run has been measured.
  void show_progress() { progress_.emplace("measuring", "runs", kRuns); }

  // Leaves out the first step, which has neither a measured warm-up nor warm caches.
  Measured measure(const std::string& name, RunConfig config, const Line& line, int64_t steps) {
    config.train.steps = steps + 1;
    config.link.rate = format_exactly(line.rate_bits_per_s);
    config.link.delay = fmt::format("{:.0f}us", line.delay_s * 1e6);
    validate(config);
    auto made = NewRunFolder::create(folder_ / fmt::format("{}", runs_), config).take();
    made.keep();
    const auto& folder = made.path();
    const SystemClock clock;
    const auto end = run_locally({options_.program, folder, config, false, silence_.get()}, clock);
    if (!end.complete) throw UserError("the benchmark was interrupted");
    const auto timing = lines_of(folder / "timing.jsonl");
    const auto metrics = lines_of(folder / "metrics.jsonl");
    Measured result;
    std::vector<double> intervals;
    for (size_t i = 1; i < timing.size(); ++i) {
      intervals.push_back(timing[i]["seconds"].get<double>() - timing[i - 1]["seconds"].get<double>());
    }
    const auto& train = config.train;
    const auto tokens = static_cast<double>(train.microbatches * train.microbatch * train.seq_len);
    result.step_s = median(intervals);
    result.tokens_per_s = tokens / result.step_s;
    result.bound_s = bound_of(config, timing, 1, line, config.data.vocab);
    const auto& bytes = metrics.back()["bytes"][0];
    result.forward_bytes = bytes["forward"].get<double>() / tokens;
    result.backward_bytes = bytes["backward"].get<double>() / tokens;
    // Each line counts what was sent before its step. All steps send the same payload.
    const double sent = timing.back()["socket_bytes"].get<double>() - timing.front()["socket_bytes"].get<double>();
    result.wire_overhead =
        sent / ((result.forward_bytes + result.backward_bytes) * tokens * static_cast<double>(timing.size() - 1));
    for (const auto& stage : timing.back()["stages"]) {
      result.wait_share += stage["wait_s"].get<double>() / stage["total_s"].get<double>() / kStages;
    }
    above_live_line([&] {
      fmt::print("{:<11} {:<20} {:>9.0f} {:>8.3f} {:>8.3f} {:>7.1f} / {:<7.1f} {:>6.4f} {:>5.0f} %\n", name,
                 line.name(), result.tokens_per_s, result.step_s, result.bound_s, result.forward_bytes,
                 result.backward_bytes, result.wire_overhead, 100 * result.wait_share);
      std::fflush(stdout);
    });
    if (progress_) progress_->add();
    if (++runs_ == kRuns) progress_.reset();
    return result;
  }

 private:
  static std::string format_exactly(uint64_t rate) { return rate == 0 ? "unlimited" : fmt::format("{}bit", rate); }

  const BenchWanOptions& options_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> silence_;
  std::filesystem::path folder_;
  uint64_t runs_ = 0;
  std::optional<WorkLine> progress_;
};

}  // namespace

void bench_wan(const BenchWanOptions& options, bool json) {
  const auto dense = config_of(options, ModelMode::kDense, Pack::kFp32);
  const auto dense_bf16 = config_of(options, ModelMode::kDense, Pack::kBf16);
  const auto subspace = config_of(options, ModelMode::kSubspace, Pack::kInt4);
  prepare_corpus(dense.data, data_dir());
  Bench bench(options);
  fmt::print("model: d = {}, {} blocks in {} stages of one thread, rank {}; M = {} microbatches of {} x {} tokens\n",
             options.d, options.blocks, kStages, options.rank, options.microbatches, options.sequences, options.length);
  fmt::print("{:<11} {:<20} {:>9} {:>8} {:>8} {:>17} {:>6} {:>7}\n", "run", "link", "tokens/s", "step s", "bound s",
             "bytes/token f / b", "wire", "waited");
  bench.show_progress();
  const Line unlimited;
  const auto dense_free = bench.measure("dense fp32", dense, unlimited, options.steps);
  const auto bf16_free = bench.measure("dense bf16", dense_bf16, unlimited, options.steps);
  const auto subspace_free = bench.measure("subspace", subspace, unlimited, options.steps);

  // In the slow run, the forward direction carries M + 1 transfers per step, which takes kSlowdown times the unlimited
  // step.
  const double forward_bits = 8 * dense_free.forward_bytes * static_cast<double>(options.sequences * options.length);
  const double transfer_s = kSlowdown * dense_free.step_s / static_cast<double>(options.microbatches + 1);
  const Line slow{static_cast<uint64_t>(forward_bits / transfer_s), 0};
  const Line far{slow.rate_bits_per_s, 0.05};
  const auto subspace_slow = bench.measure("subspace", subspace, slow, options.steps);
  const auto subspace_far = bench.measure("subspace", subspace, far, options.steps);
  const auto dense_slow = bench.measure("dense fp32", dense, slow, 1);
  bench.measure("dense bf16", dense_bf16, slow, 1);
  bench.measure("dense fp32", dense, far, 1);
  bench.measure("dense bf16", dense_bf16, far, 1);

  const double compression = (dense_free.forward_bytes + dense_free.backward_bytes) /
                             (subspace_free.forward_bytes + subspace_free.backward_bytes);
  const nlohmann::ordered_json result = {
      {"subspace_kept", subspace_slow.tokens_per_s / subspace_free.tokens_per_s},
      {"dense_kept", dense_slow.tokens_per_s / dense_free.tokens_per_s},
      {"subspace_kept_50ms", subspace_far.tokens_per_s / subspace_free.tokens_per_s},
      {"step_over_bound", subspace_free.step_s / subspace_free.bound_s},
      {"wire_overhead", std::max(dense_free.wire_overhead, bf16_free.wire_overhead)},
      {"subspace_over_dense_unlimited", subspace_free.tokens_per_s / dense_free.tokens_per_s},
      {"compression_vs_fp32", compression},
      {"slow_rate_bits_per_s", slow.rate_bits_per_s}};
  for (const auto& [key, value] : result.items()) fmt::print("{}: {}\n", key, value.dump());
  if (json) fmt::print("{}\n", result.dump());
}

}  // namespace thinpipe
