#include "host_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/files.h"
#include "base/result.h"
#include "base/say.h"
#include "net/addresses.h"

namespace thinpipe {
namespace {

// The origin in the config of the git clone that this program was built in, if other machines can reach it.
std::string origin_of_this_clone() {
  std::error_code code;
  auto folder = std::filesystem::read_symlink("/proc/self/exe", code).parent_path();
  while (!folder.empty() && folder != folder.root_path() && !std::filesystem::exists(folder / ".git", code)) {
    folder = folder.parent_path();
  }
  const auto config = read_file(folder / ".git" / "config");
  if (!config) return "";
  std::istringstream lines(config.value());
  bool in_origin = false;
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.starts_with('[')) in_origin = line == "[remote \"origin\"]";
    constexpr std::string_view kUrl = "url = ";
    if (!in_origin || !line.starts_with(kUrl)) continue;
    const auto url = line.substr(kUrl.size());
    const bool elsewhere = url.find(':') != std::string::npos && !url.starts_with("file:");
    return elsewhere ? url : "";
  }
  return "";
}

// It becomes part of a command on the hosts.
bool is_plain_url(std::string_view url) {
  return !url.empty() && url.front() != '-' && std::all_of(url.begin(), url.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-@:/~+%").find(c) != std::string_view::npos;
  });
}

HostCheck check_of(const HostArguments& arguments) {
  HostCheck check{.clone_from = arguments.install_from, .repository = origin_of_this_clone()};
  if (!is_plain_url(check.repository)) check.repository.clear();
  if (!check.clone_from.empty() && !is_plain_url(check.clone_from)) {
    throw UserError(fmt::format("--install-from {}: is not the address of a git repository", check.clone_from));
  }
  if (arguments.install && check.clone_from.empty()) {
    if (check.repository.empty()) {
      throw UserError(
          "--install-remote: this program is not in a clone that the hosts could reach the origin of; "
          "give --install-from URL");
    }
    check.clone_from = check.repository;
  }
  return check;
}

// The tasks of the Slurm job that this process is in.
Host slurm_tasks() {
  const char* job = std::getenv("SLURM_JOB_ID");
  const char* tasks = std::getenv("SLURM_NTASKS");
  const int count = tasks == nullptr ? 0 : std::atoi(tasks);
  if (job == nullptr || count < 1) {
    throw UserError("--slurm: this is not a Slurm job with --ntasks; `thinpipe launch slurm` makes one");
  }
  return {"slurm", count};
}

}  // namespace

RemoteRun hosts_in(const HostArguments& arguments) {
  RemoteRun remote;
  const int ways = (arguments.file.empty() ? 0 : 1) + (arguments.names.empty() ? 0 : 1) + (arguments.slurm ? 1 : 0);
  if (ways > 1) throw UserError("--hosts, --host and --slurm: give one of them");
  if (arguments.slurm) {
    remote.reach = HostReach::kSrun;
    remote.hosts = {slurm_tasks()};
  } else if (!arguments.file.empty()) {
    remote.hosts = parse_hostfile(read_file(arguments.file).take(), arguments.file).take();
  } else {
    remote.hosts = named_hosts(arguments.names).take();
  }
  if (remote.hosts.empty()) {
    if (!arguments.listen.empty() || !arguments.announce.empty() || arguments.install ||
        !arguments.install_from.empty()) {
      throw UserError(
          "--listen, --announce, --install-remote and --install-from are for a run on other machines: name "
          "them with --hosts or --host");
    }
    return remote;
  }
  for (const auto& address : arguments.listen) (void)parse_host_port(address).take();
  for (const auto& address : arguments.announce) check_address(address).take();
  remote.listen = arguments.listen;
  remote.announce = arguments.announce;
  return remote;
}

void require_hosts(const RemoteRun& remote, const HostArguments& arguments, const RunConfig& config) {
  if (remote.hosts.empty()) return;
  const auto slots = slots_of(remote.hosts), stages = config.pipeline.stages;
  if (slots < stages) {
    throw UserError(
        fmt::format("the hosts have {} slot(s), but the run has {} stages: name more hosts, give them "
                    "slots=N, or use --set pipeline.stages={}",
                    slots, stages, slots));
  }
  if (remote.reach == HostReach::kSsh) check_hosts(remote.hosts, check_of(arguments));
}

std::string place_of_stages(const RemoteRun& remote, int64_t stages) {
  if (remote.hosts.empty()) return counted(stages, "process");
  if (remote.reach == HostReach::kSrun) return fmt::format("{} as steps of this Slurm job", stages);
  return fmt::format("{} on {}", stages, to_string(remote.hosts));
}

std::string how_to_name(const RemoteRun& remote) {
  return remote.hosts.empty() || remote.reach == HostReach::kSrun ? "" : ", with --hosts or --host";
}

}  // namespace thinpipe
