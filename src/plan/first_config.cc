#include "plan/first_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "base/result.h"
#include "base/units.h"
#include "config/config_file.h"
#include "config/keys.h"
#include "config/model_spec.h"
#include "plan/memory_plan.h"

namespace thinpipe {
namespace {

// Tokens that a model should read per weight before a larger one would have been the better use of the time (Hoffmann
// et al. 2022).
constexpr double kTokensPerWeight = 20;
// A model with more weights per token of text than this learns the text by heart, and so does one that reads it more
// often than this.
constexpr double kWeightsPerToken = 4, kPasses = 20;
constexpr double kBytesPerToken = 4;
// The rest of the time goes into validation, checkpoints and waiting.
constexpr double kTimeForSteps = 0.9;
constexpr double kCheckpointEvery_s = 120;

struct Size {
  int64_t d, blocks;
};
constexpr Size kSizes[] = {{64, 2},    {128, 4},   {192, 4},   {256, 5},   {320, 5},   {384, 6},
                           {512, 8},   {640, 10},  {768, 12},  {1024, 16}, {1280, 20}, {1536, 24},
                           {2048, 24}, {2560, 28}, {3072, 28}, {4096, 32}};

// Numbers per token that cross a cut; wider models need some more, narrow ones no more than they are wide.
int64_t rank_of(int64_t d) { return d <= 320 ? 8 : d <= 640 ? 12 : d <= 1280 ? 16 : 32; }

double trained_parameters(const RunConfig& config) {
  double count = 0;
  for (const auto& spec : model_spec(config.model, config.data.vocab, whole_model(config.model))) {
    count += static_cast<double>(spec.elements());
  }
  return count;
}

double text_tokens(const FirstAnswers& answers) { return static_cast<double>(answers.text_bytes) / kBytesPerToken; }

class Keys {
 public:
  void add(const char* section, const char* name, const KeyValue& value, std::string why) {
    keys_.push_back({section, name, toml_text(value), std::move(why)});
  }
  RunConfig config() const {
    std::vector<std::string> settings;
    for (const auto& key : keys_) settings.push_back(fmt::format("{}.{}={}", key.section, key.name, key.value));
    return parse_config("", "init", settings);
  }
  std::vector<ChosenKey> take() { return std::move(keys_); }

 private:
  std::vector<ChosenKey> keys_;
};

void add_model(Keys& keys, const FirstAnswers& answers, Size size) {
  const bool alone = answers.machines == 1;
  keys.add("model", "mode", std::string(alone ? "dense" : "subspace"),
           alone ? "nothing crosses a link, so nothing need be small" : "few bytes between machines");
  if (!alone) {
    const bool fast = answers.purpose == Purpose::kLoss;
    keys.add("model", "recipe", std::string(fast ? "fast" : "llama"),
             fast ? "learns in fewer steps, and can be exported for transformers only" : "exports to a plain LLaMA");
  }
  keys.add("model", "d", size.d, "width");
  // Two blocks at full width belong to the last machine.
  keys.add("model", "blocks", alone ? size.blocks : std::max(size.blocks, answers.machines + 1), "depth");
  keys.add("model", "heads", std::max<int64_t>(2, size.d / 64), "must divide d");
}

Keys keys_of(const FirstAnswers& answers, Size size) {
  Keys keys;
  keys.add("data", "corpus", answers.corpus, format_size(answers.text_bytes));
  keys.add("data", "vocab", answers.vocab, "pieces of the tokenizer");
  add_model(keys, answers, size);
  keys.add("pipeline", "stages", answers.machines, "one per machine");
  if (answers.machines > 1) {
    keys.add("subspace", "rank", rank_of(size.d), "numbers per token that cross a cut");
  }
  keys.add("train", "seq_len", int64_t{size.d < 512 ? 256 : 512}, "tokens in a sequence");
  keys.add("train", "microbatch", int64_t{4}, "sequences in a microbatch");
  keys.add("train", "microbatches", std::max<int64_t>(4, 2 * answers.machines), "enough to keep all machines busy");
  return keys;
}

// The time that the measured config tells about another one, in proportion to the multiplications.
StageSpeed scaled(const StageSpeed& measured, const RunConfig& to) {
  const auto from = speed_config(to.data.vocab);
  const auto tokens = [](const RunConfig& config) {
    return static_cast<double>(config.train.microbatch * config.train.seq_len);
  };
  const auto block = [&](const RunConfig& config) {
    const auto d = static_cast<double>(config.model.d), t = static_cast<double>(config.train.seq_len);
    return tokens(config) * d * (4 * d + 3 * static_cast<double>(config.model.mlp_width) + 2 * t);
  };
  const auto ends = [&](const RunConfig& config) { return tokens(config) * static_cast<double>(config.model.d); };
  return {measured.block_s * block(to) / block(from), measured.ends_s * ends(to) / ends(from)};
}

bool fits_memory(const RunConfig& config, uint64_t memory_bytes) {
  for (int64_t stage = 0; memory_bytes > 0 && stage < config.pipeline.stages; ++stage) {
    if (memory_plan(config, config.data.vocab, stage).total() > memory_bytes) return false;
  }
  return true;
}

struct Length {
  double steps;
  bool text_is_the_limit;
};
Length length_of(const FirstAnswers& answers, const RunConfig& config, double step_s) {
  const auto per_step = static_cast<double>(config.train.microbatches * config.train.microbatch * config.train.seq_len);
  const double in_time = kTimeForSteps * seconds(answers.time) / step_s;
  const double in_text = kPasses * text_tokens(answers) / per_step;
  return {std::min(in_time, in_text), in_text < in_time};
}

// Two digits are as much as an estimate is worth.
int64_t rounded_steps(double steps) {
  const auto whole = static_cast<int64_t>(std::clamp(steps, 10.0, 1e7));
  int64_t unit = 1;
  while (whole / unit >= 100) unit *= 10;
  return whole / unit * unit;
}

}  // namespace

RunConfig speed_config(int64_t vocab) {
  const std::vector<std::string> settings{"model.mode=dense", "pipeline.stages=1", fmt::format("data.vocab={}", vocab)};
  return parse_config("", "init", settings);
}

double step_seconds(const RunConfig& config, const StageSpeed& speed, uint64_t line_bits_per_s) {
  const auto per_microbatch = scaled(speed, config);
  const auto cuts = blocks_per_stage(config);
  const auto microbatches = static_cast<double>(config.train.microbatches);
  double slowest = 0, line = 0;
  for (int64_t stage = 0; stage < config.pipeline.stages; ++stage) {
    const bool last = stage + 1 == config.pipeline.stages;
    const auto blocks = static_cast<double>(cuts[static_cast<size_t>(stage)]);
    slowest = std::max(slowest, blocks * per_microbatch.block_s + (last ? per_microbatch.ends_s : 0.0));
    const auto sent = static_cast<double>(step_traffic(config, config.data.vocab, stage).sent);
    if (line_bits_per_s > 0) line = std::max(line, 8 * sent / static_cast<double>(line_bits_per_s));
  }
  return std::max(slowest * (microbatches + static_cast<double>(config.pipeline.stages - 1)), line);
}

FirstConfig first_config(const FirstAnswers& answers, const StageSpeed& speed, uint64_t memory_bytes) {
  std::optional<Size> chosen;
  for (const Size size : kSizes) {
    const auto config = keys_of(answers, size).config();
    if (!fits_memory(config, memory_bytes)) break;
    const double weights = trained_parameters(config);
    const auto length = length_of(answers, config, step_seconds(config, speed, answers.line_bits_per_s));
    const double tokens =
        length.steps * static_cast<double>(config.train.microbatches * config.train.microbatch * config.train.seq_len);
    const bool enough = tokens >= kTokensPerWeight * weights && weights <= kWeightsPerToken * text_tokens(answers);
    if (chosen && !enough) break;
    chosen = size;
  }
  if (!chosen) {
    throw UserError(fmt::format("memory: even the smallest model needs more than the {} that a stage may take here",
                                format_size(memory_bytes)));
  }
  auto keys = keys_of(answers, *chosen);
  FirstConfig first;
  first.step_s = step_seconds(keys.config(), speed, answers.line_bits_per_s);
  const auto length = length_of(answers, keys.config(), first.step_s);
  first.text_is_the_limit = length.text_is_the_limit;
  const int64_t steps = rounded_steps(length.steps);
  keys.add("train", "steps", steps,
           length.text_is_the_limit ? fmt::format("about {:.0f} passes over the text", kPasses)
                                    : fmt::format("about {}", format_duration(answers.time)));
  keys.add("train", "eval_every", std::max<int64_t>(10, steps / 10), "steps between validation passes");
  keys.add("train", "sample_every", std::max<int64_t>(10, steps / 10), "steps between samples of its text");
  keys.add("optim", "warmup", std::clamp<int64_t>(steps / 50, 5, 500), "steps until the learning rate is at its peak");
  keys.add("checkpoint", "every", std::clamp<int64_t>(std::llround(kCheckpointEvery_s / first.step_s), 5, 1000),
           "steps; those since the last one are lost when a machine goes away");
  first.config = keys.config();
  first.parameters = trained_parameters(first.config);
  first.keys = keys.take();
  return first;
}

std::string to_text(const FirstConfig& first, const std::vector<std::string>& head) {
  std::string text;
  for (const auto& line : head) text += fmt::format("# {}\n", line);
  for (const Section& section : config_sections()) {
    bool begun = false;
    for (const auto& key : first.keys) {
      if (key.section != section.name) continue;
      if (!begun) text += fmt::format("\n[{}]\n", section.name);
      begun = true;
      text += fmt::format("{:<24}# {}\n", fmt::format("{} = {}", key.name, key.value), key.why);
    }
  }
  return text;
}

}  // namespace thinpipe
