#include "completion.h"

#include <fmt/format.h>

#include "config/keys.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

// What of the words in quotes in "needs ..." the key really takes: "cuda:N" is none.
std::string listed_values(const Key& key) {
  if (key.type == KeyType::kBool) return "true false";
  if (key.type != KeyType::kText) return key.word;
  std::string values;
  for (size_t open = key.needs.find('"'); open != std::string::npos; open = key.needs.find('"', open + 1)) {
    const auto close = key.needs.find('"', open + 1);
    if (close == std::string::npos) break;
    const auto word = key.needs.substr(open + 1, close - open - 1);
    if (key.accepts(word)) values += (values.empty() ? "" : " ") + word;
    open = close;
  }
  return values;
}

}  // namespace

std::string completion_keys() {
  std::string lines;
  for (const auto& key : config_keys()) lines += fmt::format("{}=\t{}\n", key.full(), listed_values(key));
  return lines;
}

std::string completion_runs() {
  std::string lines;
  for (const auto& run : known_runs()) lines += run.filename().string() + "\n";
  return lines;
}

std::string shell_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  return quoted + "'";
}

}  // namespace thinpipe
