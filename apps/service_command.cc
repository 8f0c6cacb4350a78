// thinpipe service: lets this machine take part in a run from its start on, as a systemd user unit. And the options of
// a machine that is lent.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/say.h"
#include "commands.h"
#include "net/invite.h"
#include "run/lingering.h"
#include "run/run_files.h"
#include "run/service_unit.h"
#include "run_folders.h"
#include "run_summary.h"

namespace thinpipe {
namespace {

// Tests name another folder than the one that systemd makes.
void refuse_without_systemd() {
  const char* other = std::getenv("THINPIPE_SYSTEMD_FOLDER");
  std::error_code ignored;
  if (std::filesystem::is_directory(other == nullptr ? "/run/systemd/system" : other, ignored)) return;
  throw UserError(
      "this machine does not run systemd, so there is no service to install, remove or ask for; start `thinpipe join` "
      "by whatever starts programs here (thinpipe service install INVITE --print shows how)");
}

// The words are ours and a unit's name: nothing that a shell could take for something else.
bool systemctl(const std::string& words) { return std::system(("systemctl --user --no-pager " + words).c_str()) == 0; }

// The name of a unit file that `service install` has written.
bool is_ours(const std::string& name) {
  constexpr std::string_view kBegin = "thinpipe-", kEnd = ".service";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size()) return false;
  const auto run = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  return run.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::vector<std::string> installed_units() {
  std::vector<std::string> units;
  std::error_code gone;
  for (std::filesystem::directory_iterator entry(user_units(), gone), end; !gone && entry != end;
       entry.increment(gone)) {
    if (const auto name = entry->path().filename().string(); is_ours(name)) units.push_back(name);
  }
  std::sort(units.begin(), units.end());
  return units;
}

// Empty if none belongs to that unit.
std::filesystem::path folder_of_unit(const std::string& unit) {
  for (const auto& folder : joined_folders()) {
    if (unit_name(folder.filename().string()) == unit) return folder;
  }
  return {};
}

// What this machine does in the run of that folder.
std::string part_in(const std::filesystem::path& folder) {
  auto joined = read_joined_run(folder);
  if (!joined) return "has not joined yet\n" + limits_line(folder);
  return joined_text({folder, std::move(joined).value()});
}

struct ServiceArguments {
  std::string invite;
  std::string name;
  bool print = false;
  bool linger = false;
  GuestOptions guest;
};

void install_service(const ServiceArguments& arguments) {
  if (!arguments.print) refuse_without_systemd();
  auto text = arguments.invite;
  if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  const auto invite = parse_invite(text).take();
  const auto folder = std::filesystem::absolute(join_folder(invite.run));
  const auto guest = merged_guest_options(folder, arguments.guest).take();
  const char* data = std::getenv("THINPIPE_DATA_DIR");
  const ServiceUnit unit{std::filesystem::read_symlink("/proc/self/exe"), invite.run, folder, arguments.name,
                         data == nullptr ? std::filesystem::path() : std::filesystem::absolute(data)};
  // A unit is made of lines.
  for (const auto& one : {unit.program.string(), unit.folder.string(), unit.data.string(), unit.name}) {
    if (escaped(one) != one) throw UserError(fmt::format("{}: no unit can hold this name", in_quotes(one, 200)));
  }
  if (unit.program.string().find_first_of("\"'\\") != std::string::npos) {
    throw UserError(
        fmt::format("{}: systemd starts no program whose path has quotes or backslashes", unit.program.string()));
  }
  if (arguments.print) {
    say("{}", unit_text(unit));
    return;
  }
  make_directories(folder).take();
  keep_guest_options(folder, guest).take();
  write_file_atomically(invite_file(folder), text + "\n", FileMode::kPrivate).take();
  make_directories(user_units()).take();
  const auto name = unit_name(invite.run);
  write_file_atomically(user_units() / name, unit_text(unit)).take();
  // Not enable --now: a service that is installed again has other options.
  if (!systemctl("daemon-reload") || !systemctl("enable " + name) || !systemctl("restart " + name)) {
    throw UserError(
        fmt::format("{} is written, but systemctl could not start it: see above", (user_units() / name).string()));
  }
  say("installed and started {0}\nits log: journalctl --user -u {0}\n", name);
  std::fflush(stdout);
  auto lingering = lingering_of_this_user();
  if (arguments.linger && lingering != Lingering::kOn) {
    if (!enable_lingering()) {
      throw UserError(
          fmt::format("--linger: {} is installed, but loginctl did not let it run while you are not logged "
                      "in; as root: {}",
                      name, command_for_lingering()));
    }
    lingering = Lingering::kOn;
  }
  say("{}\n", describe(lingering));
}

// run: the beginning of its id; empty: the only one.
void remove_service(const std::string& run) {
  refuse_without_systemd();
  auto units = installed_units();
  std::erase_if(units, [&](const std::string& unit) { return !unit.starts_with("thinpipe-" + run.substr(0, 8)); });
  if (units.empty())
    throw UserError(run.empty() ? "no service is installed"
                                : fmt::format("no service of a run {} is installed", in_quotes(run, 60)));
  if (units.size() > 1) {
    throw UserError(
        fmt::format("there are {} services; name the run of one: thinpipe service status lists them", units.size()));
  }
  const auto& unit = units.front();
  say("stopping {}: it leaves after a checkpoint\n", unit);
  std::fflush(stdout);
  (void)systemctl("disable --now " + unit);
  remove_tree(user_units() / unit).take();
  if (const auto folder = folder_of_unit(unit); !folder.empty()) remove_tree(invite_file(folder)).take();
  (void)systemctl("daemon-reload");
  say("removed {}; this machine's files of the run stay\n", unit);
  if (installed_units().empty() && lingering_of_this_user() == Lingering::kOn) {
    say("your services may still run while you are not logged in; to end that: loginctl disable-linger\n");
  }
}

void print_services() {
  refuse_without_systemd();
  const auto units = installed_units();
  if (units.empty()) say("no service is installed; thinpipe service install INVITE installs one\n");
  const auto runs = units.empty() ? "" : describe(lingering_of_this_user()) + "\n";
  for (const auto& unit : units) {
    say("{}\n", unit);
    const auto folder = folder_of_unit(unit);
    if (!folder.empty()) say("{}", part_in(folder));
    say("{}", runs);
    std::fflush(stdout);
    (void)systemctl("status --lines=3 " + unit);
  }
}

}  // namespace

void add_guest_options(Command& command, GuestOptions& options, bool train) {
  for (const auto& option : guest_options()) {
    if (train && !option.for_train) continue;
    const auto value = option.text == &GuestOptions::on_battery ? one_of({"leave", "stay"}) : Value{option.shown};
    command.value(fmt::format("--{}", option.name), options.*option.text, value, option.help);
  }
}

void add_service(Command& program, const std::string& group) {
  auto& service = program.command("service", "Take part in a run whenever this machine is on", group);
  service.require_subcommand(1);
  service.footer(R"(Examples:
  $ thinpipe service install thinpipe-v1-... --nice 10 --hours 22:00-07:00
  $ thinpipe service status
A systemd user unit runs `thinpipe join`: while you are logged in, or with --linger from the machine's
start on. It leaves after a checkpoint.)");

  auto arguments = std::make_shared<ServiceArguments>();
  auto& install = service.command("install", "Install and start the service for the run of an invite");
  install.value("INVITE", arguments->invite, {"INVITE"}, "the line you were sent; - reads it from standard input")
      ->required();
  install.value("--name", arguments->name, {"NAME"}, "name of this machine in the run; default: its host name");
  install.add_flag("--linger", arguments->linger, "let it run from the machine's start on, without anybody logged in");
  install.add_flag("--print", arguments->print, "only print the unit");
  add_guest_options(install, arguments->guest, /*train=*/false);
  install.footer(R"(Examples:
  $ thinpipe service install - < invite.txt --max-upload 5mbit --linger
  $ thinpipe service install thinpipe-v1-... --print
Keeps the invite in a file that only you can read. Writes a unit of your user, no root needed.)");
  install.callback([arguments] { install_service(*arguments); });

  auto run = std::make_shared<std::string>();
  auto& remove = service.command("remove", "Stop the service, after a checkpoint, and remove it");
  remove.value("RUN", *run, {"ID"}, "beginning of the run's id, if there are several");
  remove.footer(R"(Examples:
  $ thinpipe service remove
  $ thinpipe service remove 3f2a91ab
Also removes the invite. This machine's certificate and checkpoints of the run stay.)");
  remove.callback([run] { remove_service(*run); });

  auto& status = service.command("status", "Show the services of this user and what they do");
  status.footer(R"(Examples:
  $ thinpipe service status
  $ journalctl --user -u 'thinpipe-*'           # what they have printed
Prints for each run the limits, whether this machine takes part, and what systemd says.)");
  status.callback([] { print_services(); });
}

}  // namespace thinpipe
