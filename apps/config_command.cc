// thinpipe config: what the keys of a config mean, from the one list that reading and checking use too.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/line.h"
#include "base/result.h"
#include "base/say.h"
#include "commands.h"
#include "config/keys.h"

namespace thinpipe {
namespace {

std::string default_of(const Key& key) {
  return key.absent_help.empty() ? toml_text(key.get(RunConfig())) : key.absent_help;
}

// The key of that name; else the keys of that section; else those whose last part it is.
std::vector<const Key*> keys_meant(const std::string& name) {
  std::vector<const Key*> exact, inside, last;
  for (const auto& key : config_keys()) {
    if (key.full() == name) exact.push_back(&key);
    if (key.section == name || name.empty()) inside.push_back(&key);
    if (key.name == name) last.push_back(&key);
  }
  if (!exact.empty()) return exact;
  return inside.empty() ? last : inside;
}

[[noreturn]] void refuse_unknown(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& key : config_keys()) names.insert(names.end(), {key.full(), key.name});
  for (const auto& section : config_sections()) names.push_back(section.name);
  const auto near = nearest(name, names);
  throw UserError(
      fmt::format("there is no config key {}{}", in_quotes(name, 60),
                  near.empty() ? "; `thinpipe config` lists them all" : fmt::format(": did you mean {}?", near)));
}

void print_list(const std::vector<const Key*>& keys) {
  std::string section;
  for (const auto* key : keys) {
    if (key->section != section) {
      say("{}[{}]\n", section.empty() ? "" : "\n", key->section);
      section = key->section;
    }
    say("{:<18} {}; default: {}\n", key->name, key->help, default_of(*key));
  }
}

}  // namespace

void explain_config(const std::string& name, bool json) {
  const auto keys = keys_meant(name);
  if (keys.empty()) refuse_unknown(name);
  if (keys.size() > 1) {
    print_list(keys);
  } else {
    const auto& key = *keys.front();
    say("{}: {}\nneeds {}\ndefault: {}\nset it with --set {}=VALUE, or in a file under [{}]\n", key.full(), key.help,
        key.needs, default_of(key), key.full(), key.section);
  }
  if (!json) return;
  auto list = nlohmann::ordered_json::array();
  for (const auto* key : keys) {
    list.push_back({{"key", key->full()}, {"help", key->help}, {"needs", key->needs}, {"default", default_of(*key)}});
  }
  fmt::print("{}\n", list.dump());
}

}  // namespace thinpipe
