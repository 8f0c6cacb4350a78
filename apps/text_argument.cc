#include "text_argument.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <system_error>

#include "base/clock.h"
#include "base/result.h"
#include "base/say.h"
#include "config/config_file.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

void refuse_unnamed_config(const std::string& path) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code) || std::filesystem::file_size(path, code) == 0) return;
  try {
    (void)load_config(path);
  } catch (const UserError&) {
    return;
  }
  throw UserError(
      fmt::format("{} is a config: rename it to {}.toml; other names stand for text to train on", path, path));
}

}  // namespace

bool is_text(const std::string& argument) {
  return !argument.empty() && std::filesystem::path(argument).extension() != ".toml";
}

bool sets(const std::vector<std::string>& overrides, std::string_view key) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [&](const std::string& text) { return std::string_view(text).substr(0, text.find('=')) == key; });
}

void take_text_argument(std::string& config, std::vector<std::string>& overrides) {
  refuse_unnamed_config(config);
  if (sets(overrides, "data.corpus")) {
    throw UserError(fmt::format("--set data.corpus: {} is the text to train on already; give one of the two", config));
  }
  overrides.push_back("data.corpus=" + toml_text(config));
  config.clear();
}

void fit_vocabulary(std::vector<std::string>& overrides, const std::vector<std::string>& all, bool live) {
  if (sets(all, "data.vocab") || sets(all, "data.tokenizer")) return;
  const auto data = parse_config("", "the command line", all).data;
  const auto vocab = [&] {
    const SystemClock clock;
    PrepareLine line(stdout, live, clock);
    return vocab_for_text(data, std::ref(line));
  }();
  if (vocab == data.vocab) return;
  say("vocabulary: {} pieces instead of {}, to fit this text; --set data.vocab=N chooses another number\n", vocab,
      data.vocab);
  overrides.push_back(fmt::format("data.vocab={}", vocab));
}

}  // namespace thinpipe
