#include "run/service_unit.h"

#include <fmt/format.h>

#include <cstdlib>

namespace thinpipe {
namespace {

// A % begins a specifier everywhere in a unit.
std::string plain(const std::string& text) {
  std::string out;
  for (const char letter : text) out += letter == '%' ? "%%" : std::string(1, letter);
  return out;
}

// An argument of a command, in quotes.
std::string word(const std::string& text) {
  std::string out = "\"";
  for (const char letter : plain(text)) {
    if (letter == '"' || letter == '\\') out += '\\';
    if (letter == '$') out += '$';
    out += letter;
  }
  return out + '"';
}

// A setting of the environment, in quotes: $ means nothing there.
std::string setting(const std::string& text) {
  std::string out = "\"";
  for (const char letter : plain(text)) {
    if (letter == '"' || letter == '\\') out += '\\';
    out += letter;
  }
  return out + '"';
}

}  // namespace

std::string unit_name(const std::string& run) { return fmt::format("thinpipe-{}.service", run.substr(0, 8)); }

std::filesystem::path invite_file(const std::filesystem::path& folder) { return folder / "invite"; }

// The stop takes as long as a step and a checkpoint. If that is longer than the timeout, the run goes back to the last
// checkpoint. The coordinator may be away when the machine starts: it tries again, however often.
std::string unit_text(const ServiceUnit& unit) {
  auto command = fmt::format("\"{}\" join -", plain(unit.program.string()));
  if (!unit.name.empty()) command += " --name " + word(unit.name);
  std::string environment;
  if (!unit.data.empty())
    environment = fmt::format("Environment={}\n", setting("THINPIPE_DATA_DIR=" + unit.data.string()));
  return fmt::format(R"([Unit]
Description=thinpipe: takes part in run {0}
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={1}
StandardInput=file:{2}
StandardOutput=journal
StandardError=journal
{3}KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=15min
Restart=on-failure
RestartSec=1min
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
)",
                     unit.run.substr(0, 8), command, plain(invite_file(unit.folder).string()), environment);
}

std::filesystem::path user_units() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const auto config = variable("XDG_CONFIG_HOME");
  const std::filesystem::path base =
      config.empty() ? std::filesystem::path(variable("HOME")) / ".config" : std::filesystem::path(config);
  return base / "systemd" / "user";
}

}  // namespace thinpipe
