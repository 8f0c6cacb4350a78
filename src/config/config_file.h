// The TOML file of a run: reads it (with --set on top), reads it again on resume, and writes the config that was used.
// Every mistake in it ends in a one-line UserError that names the file and line, the key, the value and what would be
// right.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "config/run_config.h"

namespace thinpipe {

// Overrides are "section.key=value"; later ones win, and all win over the file. The value is TOML ("[1, 3]", "0.1"). A
// value that is not TOML, or not a string where the key needs text, is taken as plain text ("data.corpus=my file.txt").
// The result is validated. `defaults` have the same form and apply to keys that neither the file nor an override sets.
RunConfig load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {},
                      std::span<const std::string> defaults = {});
// The same for text in memory; messages use source_name as the file's name.
RunConfig parse_config(std::string_view text, std::string_view source_name, std::span<const std::string> overrides = {},
                       std::span<const std::string> defaults = {});

// The config of a resumed run: its own config.toml with these overrides on top. The checkpoints fix what the run
// computes; how it runs (cuts, links, checkpoints, threads and devices) and how many steps may change. A new number of
// stages without cuts means even cuts; cuts without a number of stages set it. Throws UserError for a key that would
// change what is computed, and for everything that load_config refuses.
RunConfig load_resumed_config(const std::filesystem::path& path, std::span<const std::string> overrides);

// The same without a limit on the keys: for a new run that takes over most of another one's config.
RunConfig load_changed_config(const std::filesystem::path& path, std::span<const std::string> overrides);

// Every key with its value. Reading it back gives an equal config, to the last bit. The config must be valid.
std::string to_toml(const RunConfig& config);

}  // namespace thinpipe
