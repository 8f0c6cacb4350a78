// lab speedrun: how many steps, and how much time over slow links, a recipe needs to reach the loss of a dense model.
// The rules follow Protocol NanoGPT, at the size of this machine (docs/experiments.md). Every run is trained in this
// process; the time of a step is computed: each stage has a core of its own, with measured compute times, and links of
// the given rate and delay carry packets of the real sizes. `bench wan` shows that real steps take that long.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/result.h"
#include "base/units.h"
#include "boundary/sizes.h"
#include "config/config_file.h"
#include "lab/lab.h"
#include "base/plot.h"
#include "lab/step_time.h"
#include "lab/training.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kDelay_s = 0.05;
constexpr double kSlowdown = 100;  // of the dense baseline's step, by its links

struct Entry {
  std::string name;
  std::vector<std::string> settings;
};

// "NAME KEY=VALUE KEY=VALUE ..."
Entry parse_entry(const std::string& text) {
  std::istringstream words(text);
  Entry entry;
  words >> entry.name;
  entry.settings.assign(std::istream_iterator<std::string>(words), {});
  if (entry.settings.empty()) {
    throw UserError(fmt::format("--row \"{}\": needs a name and at least one KEY=VALUE after it", text));
  }
  return entry;
}

// Eight stages of one block. The sizes give each stage a few hundred milliseconds of work per step.
std::vector<std::string> common_settings(const SpeedrunOptions& options) {
  return {"model.d=256",
          "model.blocks=8",
          "model.heads=4",
          "pipeline.stages=8",
          "data.vocab=2048",
          "train.seq_len=128",
          "train.microbatch=4",
          "train.microbatches=4",
          "subspace.rank=6",
          "subspace.full_rank_tail=1",
          "boundary.pack=int8",
          "train.eval_every=25",
          "train.eval_sequences=128",
          "optim.lr=0.01",  // the dense baseline's best; a row may have its own (docs/experiments.md)
          "subspace.update_every=0",
          fmt::format("train.steps={}", (options.long_track ? 4 : 1) * options.steps),
          fmt::format("data.corpus={}", options.corpus)};
}

std::vector<Entry> entries() {
  return {{"dense", {"model.mode=dense", "boundary.pack=bf16"}},
          {"dense-table", {"model.mode=dense", "boundary.pack=bf16", "model.table=corpus"}},
          // A subspace model of the same blocks has fewer parameters than the dense one. `llama` spends the difference
          // on the last stage, which no cut follows; with its frozen table it is as large as the dense model.
          {"llama",
           {"model.recipe=llama", "model.blocks=10", "pipeline.cuts=[1,1,1,1,1,1,1,3]", "subspace.full_rank_tail=3",
            "optim.lr=0.014"}},
          {"fast", {"model.recipe=fast"}},
          {"fast-budget",
           {"model.recipe=fast", "model.blocks=9", "pipeline.cuts=[1,1,1,1,1,1,1,2]", "subspace.full_rank_tail=2",
            "subspace.anchor_rank=22"}}};
}

// The rows asked for. The dense baseline is always the first: it sets the target.
std::vector<Entry> chosen_entries(const SpeedrunOptions& options) {
  const auto known = entries();
  auto chosen = options.only.empty() ? known : std::vector<Entry>{known.front()};
  for (const auto& name : options.only) {
    const auto found = std::find_if(known.begin(), known.end(), [&](const Entry& entry) { return entry.name == name; });
    if (found == known.end()) {
      std::vector<std::string> names;
      for (const auto& entry : known) names.push_back(entry.name);
      throw UserError(fmt::format("--only {}: there is no such row; rows are {}", name, fmt::join(names, ", ")));
    }
    if (found != known.begin()) chosen.push_back(*found);
  }
  for (const auto& row : options.rows) chosen.push_back(parse_entry(row));
  return chosen;
}

// Prints how far the run is. A finished run is kept, so an interrupted table continues where it was.
Curve train_or_recall(const RunConfig& config, const PreparedCorpus& corpus, const std::string& name) {
  const SystemClock clock;
  const auto start = clock.now();
  return kept_curve("speedrun", config, corpus, [&](int64_t step, double loss) {
    const double left_s =
        seconds(clock.now() - start) / static_cast<double>(step) * static_cast<double>(config.train.steps - step);
    fmt::print(stderr, "{}, seed {}: step {}/{}, validation loss {:.4f}, {} left for this run\n", name,
               config.train.seed, step, config.train.steps, loss,
               format_duration(std::chrono::round<std::chrono::seconds>(std::chrono::duration<double>(left_s))));
  });
}

// The rate at which a step takes kSlowdown times as long as over links that take no time.
double slow_rate(const StepTime& step) {
  const double wanted_s = kSlowdown * step.over(0, 0);
  double low = 1e3, high = 1e12;
  while (high / low > 1.0001) {
    const double middle = std::sqrt(low * high);
    (step.over(middle, kDelay_s) > wanted_s ? low : high) = middle;
  }
  return high;
}

// ---- the table ----

struct Row {
  std::string name;
  RunConfig config;
  std::vector<Curve> curves;  // per seed
  double step_s = 0;          // over the slow links
  double step_free_s = 0;     // over links that take no time

  // Mean over the seeds of the steps to the loss that `dense` has at its end with the same seed; none if one of them
  // does not reach it.
  std::optional<double> steps(const Row& dense) const {
    double sum = 0;
    for (size_t i = 0; i < curves.size(); ++i) {
      const auto steps = curves[i].steps_to(dense.curves[i].final_loss());
      if (!steps) return std::nullopt;
      sum += static_cast<double>(*steps);
    }
    return sum / static_cast<double>(curves.size());
  }
  // Numbers of the frozen token table, which is not trained and not among the parameters. Whole trained tables replace
  // it.
  int64_t frozen() const {
    const auto& subspace = config.model.subspace;
    const bool replaced = subspace.anchors == Anchors::kStage && subspace.anchor_rank == 0;
    return config.model.is_subspace() && !replaced ? config.data.vocab * config.model.d : 0;
  }
  double mean_loss() const {
    double sum = 0;
    for (const auto& curve : curves) sum += curve.final_loss();
    return sum / static_cast<double>(curves.size());
  }
};

Json show(const Row& row, const Row& dense) {
  const auto steps = row.steps(dense);
  const double dense_steps = *dense.steps(dense), dense_s = dense_steps * dense.step_s;
  const double fp32_bytes = 8.0 * static_cast<double>(row.config.model.d);
  const auto sizes = boundary_sizes(row.config, row.config.data.vocab);
  const auto tokens = static_cast<double>(row.config.train.microbatch * row.config.train.seq_len);
  Json json{{"name", row.name},
            {"parameters", row.curves[0].parameters},
            {"frozen_parameters", row.frozen()},
            {"within_budget", row.curves[0].parameters + row.frozen() <= dense.curves[0].parameters},
            {"final_loss", row.mean_loss()},
            {"final_losses", Json::array()},
            {"bytes_per_token_forward", static_cast<double>(sizes.forward) / tokens},
            {"bytes_per_token_backward", static_cast<double>(sizes.backward) / tokens},
            {"compression_vs_fp32", fp32_bytes / row.curves[0].bytes_per_token},
            {"step_s", row.step_s},
            {"step_unlimited_s", row.step_free_s},
            {"steps", nullptr},
            {"steps_over_dense", nullptr},
            {"t_over_dense", nullptr},
            {"t_over_dense_unlimited", nullptr}};
  for (const auto& curve : row.curves) json["final_losses"].push_back(curve.final_loss());
  if (steps) {
    json["steps"] = *steps;
    json["steps_over_dense"] = *steps / dense_steps;
    json["t_over_dense"] = *steps * row.step_s / dense_s;
    json["t_over_dense_unlimited"] = *steps * row.step_s / (dense_steps * dense.step_free_s);
  }
  const auto cell = [&](const char* key, int digits) {
    return json[key].is_null() ? std::string("-") : fmt::format("{:.{}f}", json[key].get<double>(), digits);
  };
  fmt::print("{:<12} {:>10} {:>8} {:>8} {:>6} {:>7} {:>6.1f} / {:<6.1f} {:>6.0f}x {:>8.3f} {:>8} {:>9}\n", row.name,
             row.curves[0].parameters, row.frozen(), cell("final_loss", 4), cell("steps", 0),
             cell("steps_over_dense", 3), json["bytes_per_token_forward"].get<double>(),
             json["bytes_per_token_backward"].get<double>(), json["compression_vs_fp32"].get<double>(), row.step_s,
             cell("t_over_dense", 4), cell("t_over_dense_unlimited", 3));
  return json;
}

// The losses of the first seed. The plot leaves out the steep beginning, which all rows have in common.
Plot curves_of(const std::vector<Row>& rows) {
  Plot plot{"validation loss, one seed", "steps", "nats per token", {}};
  for (const auto& row : rows) {
    const auto& curve = row.curves.front();
    plot.series.push_back({row.name, curve.points(curve.losses.size() / 6)});
  }
  return plot;
}

}  // namespace

void lab_speedrun(const SpeedrunOptions& options) {
  std::vector<Row> rows;
  std::optional<PreparedCorpus> corpus;
  for (const auto& entry : chosen_entries(options)) {
    Row row{entry.name, {}, {}, 0, 0};
    for (int64_t seed = 1; seed <= options.seeds; ++seed) {
      auto settings = common_settings(options);
      settings.insert(settings.end(), entry.settings.begin(), entry.settings.end());
      settings.insert(settings.end(), options.settings.begin(), options.settings.end());
      settings.push_back(fmt::format("train.seed={}", seed));
      row.config = parse_config("", "the speedrun", settings);
      if (!corpus) corpus = prepare_corpus(row.config.data, data_dir());
      row.curves.push_back(train_or_recall(row.config, *corpus, entry.name));
    }
    rows.push_back(std::move(row));
  }
  std::vector<StepTime> times;
  for (const auto& row : rows) times.emplace_back(row.config, *corpus);
  const double rate = slow_rate(times[0]);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].step_free_s = times[i].over(0, 0);
    rows[i].step_s = times[i].over(rate, kDelay_s);
  }

  const auto& dense = rows[0];
  const auto& config = dense.config;
  fmt::print("d = {}, {} blocks in {} stages, {} tokens a step, {} steps, {} seed(s), links of {} and {:.0f} ms\n",
             config.model.d, config.model.blocks, config.pipeline.stages, tokens_per_step(config.train),
             config.train.steps, options.seeds, format_rate(static_cast<uint64_t>(rate)), 1000 * kDelay_s);
  fmt::print("{:<12} {:>10} {:>8} {:>8} {:>6} {:>7} {:>15} {:>7} {:>8} {:>8} {:>9}\n", "", "parameters", "frozen",
             "loss", "steps", "/dense", "bytes/token f/b", "vs fp32", "step s", "T/dense", "unlimited");
  Json result;
  result["rate_bits_per_s"] = std::llround(rate);
  result["rows"] = Json::array();
  double noise = 0;
  for (const auto& row : rows) {
    result["rows"].push_back(show(row, dense));
    for (const auto& curve : row.curves) noise = std::max(noise, std::abs(curve.final_loss() - row.mean_loss()));
  }
  fmt::print("largest distance of a seed's loss from its row's mean: {:.4f}\n", noise);
  result["noise"] = noise;
  if (!options.svg.empty()) write_file_atomically(options.svg, to_svg(curves_of(rows))).take();
  if (options.json) fmt::print("{}\n", result.dump());
}

}  // namespace thinpipe
