// The one list of config keys (keys.cc). Reading, writing, range checks, suggestions for mistyped names and
// docs/config.md are all made from it: a new key is one line there and one field in run_config.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

// What a key may hold, as TOML sees it; an enum is its name. The order is that of KeyType.
using KeyValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
enum class KeyType { kBool, kWhole, kNumber, kText, kList };

struct Section {
  std::string name;
  std::string help;
};

struct Key {
  std::string section;
  std::string name;
  KeyType type;
  std::string needs;  // completes "needs ...": "a whole number from 1 to 4096"
  std::string help;
  std::function<bool(const KeyValue&)> accepts;  // of a value of `type`, or of text where there is a word
  std::function<KeyValue(const RunConfig&)> get;
  std::function<void(RunConfig&, const KeyValue&)> set;  // the value must be accepted

  // For a key that follows others when it is not given: in words, and the rule itself. Else empty.
  std::string absent_help;
  std::function<void(RunConfig&)> when_absent;

  // The one text that may stand in place of a value of `type` ("auto"). Else empty.
  std::string word;

  std::string full() const { return section + "." + name; }
};

// In the order of run_config.h; the keys of a section stand together.
const std::vector<Section>& config_sections();
const std::vector<Key>& config_keys();

// The value as TOML writes it, such that reading it gives the same value to the last bit.
std::string toml_text(const KeyValue& value);

}  // namespace thinpipe
