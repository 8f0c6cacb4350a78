// The list of config keys (keys.cc) and the words of their enums. Reading, writing, range checks, suggestions for typos
// and docs/config.md are all made from it: a new key is one line there and one field in run_config.h.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

// The words the TOML file uses for the values of each enum, in the order of run_config.h.
constexpr auto words(auto... word) { return std::array<std::string_view, sizeof...(word)>{word...}; }
template <class E>
inline constexpr auto kWords = words();
template <>
inline constexpr auto kWords<Positions> = words("rope", "sinusoidal");
template <>
inline constexpr auto kWords<Precision> = words("float64", "float32", "bf16");
template <>
inline constexpr auto kWords<OptimizerKind> = words("adamw", "row_adamw", "muon");
template <>
inline constexpr auto kWords<StateFormat> = words("full", "bf16");
template <>
inline constexpr auto kWords<LrSchedule> = words("constant", "cosine", "linear", "wsd");
template <>
inline constexpr auto kWords<Pack> = words("fp64", "fp32", "bf16", "fp16", "int8", "int4", "int2");
template <>
inline constexpr auto kWords<BoundaryKind> = words("stream", "topk", "lowrank");
template <>
inline constexpr auto kWords<ModelMode> = words("dense", "subspace");
template <>
inline constexpr auto kWords<Recipe> = words("llama", "fast");
template <>
inline constexpr auto kWords<Anchors> = words("fixed", "stage");
template <>
inline constexpr auto kWords<Previous> = words("none", "table");
template <>
inline constexpr auto kWords<InputForm> = words("auto", "table", "direct");
template <>
inline constexpr auto kWords<Recompute> = words("none", "block");
template <>
inline constexpr auto kWords<ScheduleKind> = words("gpipe", "1f1b");
template <>
inline constexpr auto kWords<Encoding> = words("utf-8", "latin-1", "utf-16", "auto");
template <>
inline constexpr auto kWords<Invalid> = words("refuse", "replace", "skip");
template <>
inline constexpr auto kWords<CheckpointMode> = words("auto", "async", "sync");

template <class E>
std::string_view enum_name(E value) {
  return kWords<E>.at(static_cast<size_t>(value));
}

// Sets *value to the enum value of that word. Returns false and leaves *value alone if there is no such word.
template <class E>
bool enum_from_name(std::string_view word, E* value) {
  const auto found = std::find(kWords<E>.begin(), kWords<E>.end(), word);
  if (found == kWords<E>.end()) return false;
  *value = static_cast<E>(found - kWords<E>.begin());
  return true;
}

// What a key may hold, as TOML sees it; an enum is held as its word. The order is that of KeyType.
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
  std::string needs;  // completes "needs ...", e.g. "a whole number from 1 to 4096"
  std::string help;
  std::function<bool(const KeyValue&)> accepts;  // takes a value of `type`, or text if `word` is set
  std::function<KeyValue(const RunConfig&)> get;
  std::function<void(RunConfig&, const KeyValue&)> set;  // the value must be accepted

  // For a key whose default depends on other keys: the default in words, and the function that sets it. Else empty.
  std::string absent_help;
  std::function<void(RunConfig&)> when_absent;

  // All that it accepts, or common values, for a shell to offer: "true", "cuda". Empty where there are too many.
  std::vector<std::string> words;

  // The one text that the key accepts instead of a value of `type` ("auto"). Otherwise empty.
  std::string word;

  std::string full() const { return section + "." + name; }
};

// In the order of run_config.h; the keys of a section are adjacent.
const std::vector<Section>& config_sections();
const std::vector<Key>& config_keys();

// The value as TOML. Reading it back gives the same value to the last bit.
std::string toml_text(const KeyValue& value);

}  // namespace thinpipe
