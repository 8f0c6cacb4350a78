// What is written from the list of keys: a config as TOML, and the reference for people.
#include <fmt/format.h>

#include "config/config_file.h"
#include "config/keys.h"

namespace thinpipe {
namespace {

constexpr std::string_view kIntro =
    R"(# Configuration

A run is described by one TOML file; every key may be left out. `configs/default.toml` holds the default run with
comments. `--set section.key=value` on the command line wins over the file, and later ones win over earlier ones:

    ./thinpipe train configs/default.toml --set model.d=512 --set 'pipeline.cuts=[1,3]'

The value is read as TOML; text may be written without quotes. A whole number is accepted where a number is asked for,
not the other way round. An unknown key, a wrong type and a value out of range are refused with the place and what
would be right.

This page is printed from the list of keys in `src/config/keys.cc`. After changing that list, rewrite it with
`THINPIPE_UPDATE_DOCS=1 build/dev/tests/config/test_config --gtest_filter='*Reference*'`.
)";

// A table cell may not hold a bar of its own.
std::string cell(std::string_view text) {
  std::string out;
  for (const char character : text) out += character == '|' ? std::string("\\|") : std::string(1, character);
  return out;
}

}  // namespace

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

std::string config_reference_markdown() {
  const RunConfig defaults;
  std::string out(kIntro);
  for (const Section& section : config_sections()) {
    out += fmt::format("\n## [{}]\n\n{}\n\n| key | default | needs | meaning |\n|---|---|---|---|\n", section.name,
                       section.help);
    for (const Key& key : config_keys()) {
      if (key.section != section.name) continue;
      const std::string standard = fmt::format("`{}`", toml_text(key.get(defaults)));
      out += fmt::format("| `{}` | {} | {} | {} |\n", key.name,
                         cell(key.absent_help.empty() ? standard : key.absent_help), cell(key.needs), cell(key.help));
    }
  }
  return out;
}

}  // namespace thinpipe
