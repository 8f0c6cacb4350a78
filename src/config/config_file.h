// The TOML file of a run: reading it (with --set on top), reading it again when the run is resumed, and writing a
// config back as used. Every fault a person can make in it ends in a UserError of one line that names the file and
// line, the key, the value and what would be right.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "config/run_config.h"

namespace thinpipe {

// Overrides are "section.key=value", later ones win, all win over the file. The value is TOML ("[1, 3]", "0.1"); what
// is not, or is not the text a text key needs, is taken as text as it stands ("data.corpus=my file.txt"). The result is
// validated. `defaults`, written as overrides are, stand where the file says nothing.
RunConfig load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {},
                      std::span<const std::string> defaults = {});
// The same for text that is already here; source_name stands for the file in messages.
RunConfig parse_config(std::string_view text, std::string_view source_name, std::span<const std::string> overrides = {},
                       std::span<const std::string> defaults = {});

// The config of a run that is resumed: its own config.toml with these overrides on top. What the run computes is fixed
// by its checkpoints; how it is carried out (cuts, links, checkpoints, threads and devices) may change. A new number of
// stages without cuts means even cuts; cuts without a number of stages set it. UserError for a key that would change
// what is computed, by its name, and for everything that load_config refuses.
RunConfig load_resumed_config(const std::filesystem::path& path, std::span<const std::string> overrides);

// Every key with its value. Reading it back gives an equal config, to the last bit; the config must be valid.
std::string to_toml(const RunConfig& config);

}  // namespace thinpipe
