// The systemd user unit with which a machine takes part in a run from its start on (`thinpipe service`). The invite is
// in a file that only its owner can read, and reaches the program as standard input: neither the unit nor the list of
// processes shows it.
#pragma once

#include <filesystem>
#include <string>

namespace thinpipe {

struct ServiceUnit {
  std::filesystem::path program;  // absolute; systemd starts none whose path has quotes or backslashes
  std::string run;                // the id of the run: hexadecimal
  std::filesystem::path folder;   // of this machine's files of the run; absolute
  std::string name;               // of this machine in the run; empty: its host name
  std::filesystem::path data;     // THINPIPE_DATA_DIR; empty: the default
};

// "thinpipe-3f2a91ab.service"
std::string unit_name(const std::string& run);
std::filesystem::path invite_file(const std::filesystem::path& folder);
std::string unit_text(const ServiceUnit& unit);

// Where the units of this user are: $XDG_CONFIG_HOME/systemd/user, else ~/.config/systemd/user.
std::filesystem::path user_units();

}  // namespace thinpipe
