// The only file that includes toml++, which is slow to compile.
#include "config/config_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/units.h"
#include "config/keys.h"

namespace thinpipe {
namespace {

constexpr uintmax_t kMaxConfigBytes = 1 << 20;
constexpr size_t kMaxShown = 80;

std::string shown(std::string_view text) { return escaped(text, kMaxShown); }

std::string shown(const toml::node& node) {
  if (const auto* array = node.as_array()) {
    std::vector<std::string> elements;
    for (const toml::node& element : *array) {
      elements.push_back(element.is_array() ? "[...]" : shown(element));
      if (elements.size() == 8 && array->size() > 8) {
        elements.push_back("...");
        break;
      }
    }
    return fmt::format("[{}]", fmt::join(elements, ", "));
  }
  if (const auto value = node.value_exact<std::string>()) return in_quotes(*value, kMaxShown);
  if (const auto value = node.value_exact<int64_t>()) return toml_text(*value);
  if (const auto value = node.value_exact<double>()) return toml_text(*value);
  if (const auto value = node.value_exact<bool>()) return toml_text(*value);
  return node.is_table() ? "{...}" : "a date or time";
}

// The node's value if it has the key's type or is the key's word. A whole number also counts as a number.
std::optional<KeyValue> value_of(const toml::node& node, const Key& key) {
  if (const auto text = node.value_exact<std::string>(); text && !key.word.empty() && *text == key.word) return *text;
  switch (key.type) {
    case KeyType::kBool:
      if (const auto value = node.value_exact<bool>()) return *value;
      break;
    case KeyType::kWhole:
      if (const auto value = node.value_exact<int64_t>()) return *value;
      break;
    case KeyType::kNumber:
      if (const auto value = node.value_exact<double>()) return *value;
      if (const auto value = node.value_exact<int64_t>()) return static_cast<double>(*value);
      break;
    case KeyType::kText:
      if (const auto value = node.value_exact<std::string>()) return *value;
      break;
    case KeyType::kList: {
      const auto* array = node.as_array();
      if (array == nullptr) break;
      std::vector<int64_t> numbers;
      for (const toml::node& element : *array) {
        const auto number = element.value_exact<int64_t>();
        if (!number) return std::nullopt;
        numbers.push_back(*number);
      }
      return numbers;
    }
  }
  return std::nullopt;
}

const Key* find_key(std::string_view section, std::string_view name) {
  for (const Key& key : config_keys()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

bool is_section(std::string_view name) {
  return std::any_of(config_sections().begin(), config_sections().end(),
                     [name](const Section& section) { return section.name == name; });
}

// What somebody who wrote section.name may have meant: the same name in another section, else a typo.
std::string suggestion(std::string_view section, std::string_view name) {
  std::vector<std::string> names;
  for (const Key& key : config_keys()) {
    if (key.name == name) return fmt::format("did you mean {}?", key.full());
    if (key.section == section) names.push_back(key.name);
  }
  const std::string near = nearest(name, names);
  if (!near.empty()) return fmt::format("did you mean {}.{}?", section, near);
  return fmt::format("[{}] has {}", section, fmt::join(names, ", "));
}

std::string section_suggestion(std::string_view name) {
  std::vector<std::string> names;
  for (const Section& section : config_sections()) names.push_back(section.name);
  const std::string near = nearest(name, names);
  if (!near.empty()) return fmt::format("did you mean [{}]?", near);
  return fmt::format("the sections are {}", fmt::join(names, ", "));
}

// Where an override comes from: --set, or an option such as --steps that sets a key.
constexpr std::string_view kCommandLine = "on the command line";

// Fills a RunConfig key by key and remembers which keys were given, for defaults that depend on other keys.
class Reader {
 public:
  explicit Reader(std::string_view source_name, RunConfig config = {})
      : source_name_(source_name), config_(std::move(config)) {}

  void read_file_text(std::string_view text) {
    try {
      read_root(toml::parse(text, source_name_));
    } catch (const toml::parse_error& error) {
      const auto at = error.source().begin;
      throw UserError(
          fmt::format("{}:{}:{}: not valid TOML: {}", source_name_, at.line, at.column, shown(error.description())));
    }
  }

  void read_override(std::string_view text) {
    const size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    const size_t dot = name.find('.');
    if (equals == std::string_view::npos || dot == std::string_view::npos) {
      throw UserError(fmt::format("--set {}: needs section.key=value, as in --set model.d=512", shown(text)));
    }
    const std::string_view section = name.substr(0, dot);
    const Key* key = find_key(section, name.substr(dot + 1));
    if (key == nullptr) refuse_name(section, name.substr(dot + 1), kCommandLine);

    const std::string_view value = text.substr(equals + 1);
    if (const auto table = parse_value(value)) {
      const toml::node& node = *table->get("value");
      // A text key takes 2024 or true as text.
      if (key->type != KeyType::kText || node.is_string()) return set(*key, node, kCommandLine);
    }
    // Quoted, so that it goes through the same UTF-8 check as a file.
    const auto table = parse_value(toml_text(std::string(value)));
    if (!table) throw UserError(fmt::format("{} {}: the value is not valid UTF-8 text", key->full(), kCommandLine));
    set(*key, *table->get("value"), kCommandLine);
  }

  void fill_in_absent() {
    for (const Key& key : config_keys()) {
      if (key.when_absent && !given_.contains(&key)) key.when_absent(config_);
    }
  }

  bool was_given(std::string_view section, std::string_view name) const {
    return given_.contains(find_key(section, name));
  }
  PipelineConfig& pipeline() { return config_.pipeline; }

  // overridden: there were overrides too, so a conflict between keys need not be in the file.
  RunConfig finish(bool overridden) {
    try {
      validate(config_);
    } catch (const UserError& error) {
      const bool both = overridden && source_name_ != "the command line";
      throw UserError(fmt::format("{}{}: {}", source_name_, both ? " and the command line" : "", error.what()));
    }
    return config_;
  }

 private:
  // Parses one value by itself. Returns nothing if it is not TOML, or is more than one value.
  static std::optional<toml::table> parse_value(std::string_view value) {
    if (value.find_first_of("\r\n") != std::string_view::npos) return std::nullopt;
    try {
      return toml::parse("value = " + std::string(value));
    } catch (const toml::parse_error&) {
      return std::nullopt;
    }
  }

  std::string place(const toml::source_region& region) const {
    return fmt::format("in {}:{}", source_name_, region.begin.line);
  }

  [[noreturn]] static void refuse_name(std::string_view section, std::string_view name, std::string_view where) {
    if (!is_section(section)) {
      throw UserError(fmt::format("unknown section [{}] {}: {}", shown(section), where, section_suggestion(section)));
    }
    throw UserError(fmt::format("unknown key {}.{} {}: {}", section, shown(name), where, suggestion(section, name)));
  }

  void read_root(const toml::table& root) {
    for (const auto& [name, node] : root) {
      const std::string where = place(name.source());
      if (const auto* section = node.as_table()) {
        if (!is_section(name.str())) refuse_name(name.str(), "", where);
        read_section(name.str(), *section);
      } else if (is_section(name.str())) {
        throw UserError(
            fmt::format("{} = {} {}: needs to be the section [{}]", name.str(), shown(node), where, name.str()));
      } else {
        refuse_root_key(name.str(), where);
      }
    }
  }

  [[noreturn]] static void refuse_root_key(std::string_view name, std::string_view where) {
    std::vector<std::string> names;
    for (const Key& key : config_keys()) names.push_back(key.name);
    const std::string near = nearest(name, names);
    const auto found =
        std::find_if(config_keys().begin(), config_keys().end(), [&near](const Key& key) { return key.name == near; });
    throw UserError(fmt::format("unknown key {} {}: needs to be in a section{}", shown(name), where,
                                found == config_keys().end() ? "" : fmt::format(", did you mean {}?", found->full())));
  }

  void read_section(std::string_view section, const toml::table& table) {
    for (const auto& [name, node] : table) {
      const std::string where = place(name.source());
      const Key* key = find_key(section, name.str());
      if (key == nullptr) refuse_name(section, name.str(), where);
      set(*key, node, where);
    }
  }

  void set(const Key& key, const toml::node& node, std::string_view where) {
    const auto value = value_of(node, key);
    if (!value || !key.accepts(*value)) {
      throw UserError(fmt::format("{} = {} {}: needs {}", key.full(), shown(node), where, key.needs));
    }
    key.set(config_, *value);
    given_.insert(&key);
  }

  std::string source_name_;
  RunConfig config_;
  std::set<const Key*> given_;
};

bool may_change(const Key& key) {
  const auto is_one_of = [](const std::string& name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return is_one_of(key.section, {"pipeline", "link", "checkpoint", "cluster"}) ||
         is_one_of(key.full(),
                   {"train.steps", "train.threads", "train.recompute", "train.device", "train.sample_every"});
}

// Unknown keys are left to the reader, which suggests what may have been meant.
void refuse_what_stays(std::span<const std::string> overrides) {
  for (const std::string& text : overrides) {
    const auto name = std::string_view(text).substr(0, text.find('='));
    for (const Key& key : config_keys()) {
      if (key.full() != name || may_change(key)) continue;
      throw UserError(
          fmt::format("--set {}: changes what the run computes, which its checkpoints fix; start a new run for that, "
                      "with --from to "
                      "keep the weights (a resumed run takes pipeline.*, link.*, checkpoint.*, cluster.*, train.steps, "
                      "train.threads, train.recompute, train.device and train.sample_every)",
                      name));
    }
  }
}

}  // namespace

RunConfig parse_config(std::string_view text, std::string_view source_name, std::span<const std::string> overrides,
                       std::span<const std::string> defaults) {
  Reader reader(source_name);
  for (const std::string& default_text : defaults) reader.read_override(default_text);
  reader.read_file_text(text);
  for (const std::string& override_text : overrides) reader.read_override(override_text);
  reader.fill_in_absent();
  return reader.finish(!overrides.empty());
}

RunConfig load_config(const std::filesystem::path& path, std::span<const std::string> overrides,
                      std::span<const std::string> defaults) {
  std::error_code code;
  const uintmax_t size = std::filesystem::file_size(path, code);
  if (!code && size > kMaxConfigBytes) {
    throw UserError(fmt::format("{} has {}: a config file has at most {}", path.string(), format_size(size),
                                format_size(kMaxConfigBytes)));
  }
  return parse_config(read_file(path).take(), path.string(), overrides, defaults);
}

RunConfig load_resumed_config(const std::filesystem::path& path, std::span<const std::string> overrides) {
  refuse_what_stays(overrides);
  return load_changed_config(path, overrides);
}

RunConfig load_changed_config(const std::filesystem::path& path, std::span<const std::string> overrides) {
  const RunConfig before = load_config(path);
  Reader reader(path.string(), before);
  for (const std::string& override_text : overrides) reader.read_override(override_text);
  const bool stages = reader.was_given("pipeline", "stages"), cuts = reader.was_given("pipeline", "cuts");
  auto& pipeline = reader.pipeline();
  if (stages && !cuts && pipeline.stages != before.pipeline.stages) pipeline.cuts.clear();
  if (cuts && !stages && !pipeline.cuts.empty()) pipeline.stages = static_cast<int64_t>(pipeline.cuts.size());
  return reader.finish(!overrides.empty());
}

std::string to_toml(const RunConfig& config) {
  std::string out;
  for (const Section& section : config_sections()) {
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section.name);
    for (const Key& key : config_keys()) {
      if (key.section == section.name) out += fmt::format("{} = {}\n", key.name, toml_text(key.get(config)));
    }
  }
  return out;
}

}  // namespace thinpipe
