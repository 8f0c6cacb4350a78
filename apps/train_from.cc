#include "train_from.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/result.h"
#include "config/config_file.h"
#include "config/keys.h"
#include "model/stage.h"
#include "model_argument.h"
#include "pipeline/run_corpus.h"
#include "run/begin_run.h"

namespace thinpipe {
namespace {

// The keys that decide which weights a model has and what they mean.
std::vector<const Key*> keys_of_weights() {
  constexpr std::array kMayChange{"subspace.input", "subspace.update_every", "subspace.update_rate"};
  std::vector<const Key*> keys;
  for (const Key& key : config_keys()) {
    if (key.section != "model" && key.section != "subspace") continue;
    if (std::find(kMayChange.begin(), kMayChange.end(), key.full()) == kMayChange.end()) keys.push_back(&key);
  }
  return keys;
}

[[noreturn]] void refuse_key(const std::string& name, const KeyValue& value, const ModelFiles& model,
                             const std::string& what) {
  throw UserError(
      fmt::format("{} = {}: {} has {}, and a run that begins with its weights keeps that; leave the key out", name,
                  toml_text(value), model.title, what));
}

void check_fit(const RunConfig& wanted, const ModelFiles& model) {
  const auto& old = model.config;
  for (const Key* key : keys_of_weights()) {
    if (key->get(wanted) != key->get(old)) {
      refuse_key(key->full(), key->get(wanted), model, toml_text(key->get(old)));
    }
  }
  if (wanted.data.vocab != old.data.vocab) {
    refuse_key("data.vocab", wanted.data.vocab, model, fmt::format("{}", old.data.vocab));
  }
  if (!wanted.data.tokenizer.empty() && wanted.data.tokenizer != old.data.tokenizer) {
    refuse_key("data.tokenizer", wanted.data.tokenizer, model, "a tokenizer of its own");
  }
  // Without a table of its own, the model's anchors are drawn from the seed.
  if (old.model.is_subspace() && old.model.table.empty() && wanted.train.seed != old.train.seed) {
    refuse_key("train.seed", static_cast<int64_t>(wanted.train.seed), model,
               fmt::format("a token table drawn from {}", old.train.seed));
  }
}

RunConfig config_for_weights(const ModelFiles& model, const std::string& config_file,
                             std::span<const std::string> overrides) {
  if (config_file.empty()) return load_changed_config(*model.run / "config.toml", overrides);
  std::vector<std::string> defaults{fmt::format("data.vocab={}", model.vocab())};
  for (const Key* key : keys_of_weights()) {
    defaults.push_back(fmt::format("{}={}", key->full(), toml_text(key->get(model.config))));
  }
  return load_config(config_file, overrides, defaults);
}

}  // namespace

RunFrom run_from(const std::string& from, const std::string& step, const std::string& config_file,
                 std::span<const std::string> overrides, const PrepareProgress& progress) {
  auto model = open_model({.where = from, .step = step});
  if (!model.run) {
    throw UserError(fmt::format(
        "--from {}: needs a run, or a checkpoint of one; `thinpipe import` begins a run with a Hugging Face folder",
        from));
  }
  auto config = config_for_weights(model, config_file, overrides);
  check_fit(config, model);
  const bool same_text = config.data == model.config.data;
  if (!same_text) {
    config.data.tokenizer = place_of(model.tokenizer).string();
    keep(model.tokenizer);
  }
  // Only the first embedding of a dense model comes from a table.
  if (!config.model.is_subspace()) config.model.table.clear();
  auto corpus = same_text ? corpus_of_run(*model.run, config.data, data_dir(), progress)
                          : prepare_corpus(config.data, data_dir(), progress);
  return {std::move(model), std::move(config), std::move(corpus)};
}

std::filesystem::path begin_with_weights(const RunFrom& run, const std::filesystem::path& folder) {
  const auto stage = load_model(run.model, "cpu");
  FirstWeights weights;
  for (const auto& parameter : stage->parameters().all())
    weights.parameters.emplace_back(parameter.name, parameter.value);
  if (const auto* side = stage->subspace()) {
    weights.basis = side->basis().u;
    weights.table = run.model.table;
  }
  return begin_run_from(folder, run.config, run.corpus, weights, run.model.title).take();
}

}  // namespace thinpipe
