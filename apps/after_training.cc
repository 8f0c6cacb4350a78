#include "after_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/units.h"
#include "config/config_file.h"
#include "config/model_spec.h"
#include "models/generator.h"
#include "models/llama.h"
#include "models/model_files.h"
#include "pipeline/run_corpus.h"
#include "plan/machine.h"
#include "run/samples.h"
#include "text/shards.h"

namespace thinpipe {
namespace {

constexpr int64_t kPromptTokens = 8;
constexpr int64_t kSampleTokens = 48;
constexpr Duration kLongestSample = std::chrono::seconds(5);        // somebody waits for it
constexpr Duration kLongestQuietSample = std::chrono::seconds(60);  // nobody waits, and training goes first
constexpr double kLargestSampled = 1 << 30;  // bytes of weights: larger models take too long to load for one line

// Refuses what would take long, or memory that is not there.
void check_size(const RunConfig& config) {
  double bytes = 0;
  for (const auto& spec : model_spec(config.model, config.data.vocab, whole_model(config.model))) {
    bytes += static_cast<double>(spec.elements() * element_bytes(config.train.precision));
  }
  const auto available = static_cast<double>(available_memory_bytes());
  if (bytes > kLargestSampled || (available > 0 && 2 * bytes > available)) {
    throw UserError(fmt::format("the weights have {}", format_size(static_cast<uint64_t>(bytes))));
  }
}

// The first tokens of the validation text, from its begin-of-text token on.
std::vector<int32_t> prompt_tokens(const PreparedCorpus& corpus, const Tokenizer& tokenizer, int64_t context) {
  const auto shard = TokenShard::open(corpus.val).take();
  std::vector<int32_t> tokens(
      std::min<uint64_t>(shard.size(), static_cast<uint64_t>(std::min(kPromptTokens + 1, context / 2))));
  shard.read(0, tokens).take();
  if (tokens.empty() || tokens.front() != tokenizer.bos()) tokens.insert(tokens.begin(), tokenizer.bos());
  return tokens;
}

std::string continuation(const ModelFiles& files, const PreparedCorpus& corpus, Duration longest) {
  if (files.context() < 2) throw UserError("its context is one token");
  const auto& tokenizer = files.tokenizer;
  const auto prompt = prompt_tokens(corpus, tokenizer, files.context());
  const auto stage = load_model(files, "cpu");
  Generator generator(*stage, files.config.model, std::min(files.context(), kPromptTokens + 1 + kSampleTokens),
                      tokenizer.vocab());
  generator.read(prompt);
  TokenPicker picker(PickOptions{});
  TextStream stream(tokenizer, prompt);
  const SystemClock clock;
  const auto end = clock.now() + longest;
  std::string text;
  for (int64_t i = 0; i < kSampleTokens && clock.now() < end; ++i) {
    const int32_t token = generator.next(picker).take();
    if (token == tokenizer.eos() || token == tokenizer.bos()) break;
    text += stream.add(token);
  }
  text += stream.finish();
  const auto begin = tokenizer.decode(prompt).take();
  return fmt::format("{} ...{}", one_line(begin), one_line(text));
}

}  // namespace

std::string sample_of(const std::filesystem::path& run, int64_t step) {
  check_size(load_config(run / "config.toml"));
  const auto files = open_run(run, step);
  return continuation(files, corpus_of_run(run, files.config.data, data_dir()), kLongestQuietSample);
}

std::string sample_line(const std::filesystem::path& run, const PreparedCorpus& corpus) {
  try {
    check_size(load_config(run / "config.toml"));
    const auto files = open_run(run, std::nullopt);
    const auto sample = continuation(files, corpus, kLongestSample);
    add_sample(run, {files.config.train.steps, sample}).take();
    return fmt::format("sample: {}", sample);
  } catch (const std::exception& error) {
    return fmt::format("no sample: {}", one_line(error.what()));
  }
}

std::string next_commands(const std::filesystem::path& run, const RunConfig& config, bool resumable) {
  const bool by_name = run.parent_path() == data_dir() / "runs";
  const auto name = by_name ? run.filename().string() : run.string();
  const auto* format = export_limit(config).empty() ? "gguf" : "hf";
  std::string text = fmt::format(
      "next: thinpipe generate {0}\n      thinpipe eval {0}\n      thinpipe export {0} --format {1}\n", name, format);
  const int64_t longer = 2 * std::max<int64_t>(1, config.train.steps);
  text += resumable ? fmt::format("      thinpipe train --resume {} --steps {}\n", name, longer)
                    : fmt::format("      thinpipe train --from {}\n", name);
  return text;
}

}  // namespace thinpipe
