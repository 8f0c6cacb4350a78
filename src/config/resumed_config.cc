#include "config/resumed_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/config_file.h"
#include "config/keys.h"

namespace thinpipe {
namespace {

bool may_change(const Key& key) {
  const auto is_one_of = [](const std::string& name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return is_one_of(key.section, {"pipeline", "link", "checkpoint", "cluster"}) ||
         is_one_of(key.full(), {"train.threads", "train.device"});
}

// "model.d" of "model.d=512".
std::string_view name_in(std::string_view override_text) { return override_text.substr(0, override_text.find('=')); }

bool names(std::span<const std::string> overrides, std::string_view key) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [key](const std::string& text) { return name_in(text) == key; });
}

// What is no key at all is left to load_config, which knows what may have been meant.
void refuse_what_stays(std::span<const std::string> overrides) {
  for (const std::string& text : overrides) {
    const auto name = name_in(text);
    for (const Key& key : config_keys()) {
      if (key.full() != name || may_change(key)) continue;
      throw UserError(fmt::format(
          "--set {}: decides what the run computes, and its checkpoints are of the run as it began; begin a "
          "new run for that (a run that goes on takes pipeline.*, link.*, checkpoint.*, cluster.*, "
          "train.threads and train.device)",
          name));
    }
  }
}

std::string toml_without(const RunConfig& config, std::string_view left_out) {
  std::string out;
  for (const Section& section : config_sections()) {
    out += fmt::format("[{}]\n", section.name);
    for (const Key& key : config_keys()) {
      if (key.section != section.name || key.full() == left_out) continue;
      out += fmt::format("{} = {}\n", key.name, toml_text(key.get(config)));
    }
  }
  return out;
}

}  // namespace

RunConfig load_resumed_config(const std::filesystem::path& path, std::span<const std::string> overrides) {
  refuse_what_stays(overrides);
  const auto before = load_config(path);
  const bool stages = names(overrides, "pipeline.stages"), cuts = names(overrides, "pipeline.cuts");
  const auto same_number = fmt::format("pipeline.stages={}", before.pipeline.stages);
  if (stages && !cuts && !before.pipeline.auto_cuts &&
      std::find(overrides.begin(), overrides.end(), same_number) == overrides.end()) {
    return parse_config(toml_without(before, "pipeline.cuts"), path.string(), overrides);
  }
  if (cuts && !stages) {
    auto counted = parse_config(toml_without(before, "pipeline.stages"), path.string(), overrides);
    if (!counted.pipeline.cuts.empty()) return counted;
  }
  return load_config(path, overrides);
}

}  // namespace thinpipe
