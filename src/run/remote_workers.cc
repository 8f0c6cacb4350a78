#include "run/remote_workers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "base/line.h"
#include "base/units.h"
#include "run/input_watch.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;

constexpr int kMissing = 127;  // exit code of the scripts below, as of a shell that does not find a command
constexpr int kSshFailed = 255;
constexpr int kMostLosses = 20;
constexpr int kMostFailures = 4;
constexpr Duration kLongestWait = std::chrono::seconds(60);
// A worker that has lived for so long was well: what ends it then is something new.
constexpr Duration kGoodLife = std::chrono::seconds(60);
// Workers end a moment before the coordinator that has told them to.
constexpr Duration kEndOfRun = std::chrono::seconds(20);
constexpr Duration kCheckPatience = std::chrono::seconds(60);
// A host's coordinator admits 120 calls a minute from one address, and every joining machine calls five times.
constexpr int64_t kSlotsAtOnce = 8;
constexpr Duration kBetweenSlots = std::chrono::seconds(3);

// ---- what runs on the host ----

// Shell scripts of one line, without single quotes and exclamation marks, so that every login shell passes them on.
// This one sets p to the program, or to nothing. A shell that ssh starts often has a short PATH.
constexpr std::string_view kFind =
    R"(for p in thinpipe "$HOME/.local/bin/thinpipe" "$HOME/thinpipe/build/release/apps/thinpipe"; )"
    R"(do command -v "$p" >/dev/null 2>&1 && break; p=; done; )";

std::string check_script() { return fmt::format("{}[ \"$p\" ] || exit {}", kFind, kMissing); }

std::string clone_command(const std::string& repository) { return fmt::format("git clone {} thinpipe", repository); }
constexpr std::string_view kBuildCommand = "thinpipe/thinpipe --version";

std::string install_script(const std::string& repository) {
  return fmt::format("cd && {{ [ -e thinpipe ] || {}; }} && {}", clone_command(repository), kBuildCommand);
}

// Two stages on one machine need folders of their own, and so do two machines that share a home folder.
std::string join_script(const std::string& program, const std::string& label, const std::string& name) {
  const auto find = program.empty() ? std::string(kFind) : fmt::format("p=\"{}\"; ", program);
  return fmt::format(
      "{}[ \"$p\" ] || {{ echo \"thinpipe: thinpipe is not installed there\" >&2; exit {}; }}; "
      "export THINPIPE_DATA_DIR=\"${{THINPIPE_DATA_DIR:-${{XDG_DATA_HOME:-$HOME/.local/share}}/thinpipe}}/hosts/{}\"; "
      "exec \"$p\" join - --name {} --leave-with-input",
      find, kMissing, label, name);
}

// ---- how it gets there ----

Result<fs::path> program_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto file = fs::path(folder) / name;
    if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return Error{fmt::format("there is no {} on this machine; install the Debian package {}", name,
                           name == "ssh" ? "openssh-client" : "slurm-client")};
}

// Nobody can type a password here. ssh writes what it has to say itself into `own`.
std::vector<std::string> ssh_arguments(const std::string& host, const std::string& script, const fs::path& own) {
  std::vector<std::string> arguments{"-T"};
  for (const char* option : {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"}) {
    arguments.insert(arguments.end(), {"-o", option});
  }
  arguments.insert(arguments.end(), {"-E", own.string(), "--", host, fmt::format("sh -c '{}'", script)});
  return arguments;
}

// A step of the Slurm job that this process is in; Slurm chooses the node.
std::vector<std::string> srun_arguments(const std::string& script) {
  std::vector<std::string> arguments{"--ntasks=1", "--nodes=1", "--exact", "--quiet"};
  if (const char* cpus = std::getenv("SLURM_CPUS_PER_TASK")) {
    arguments.push_back(fmt::format("--cpus-per-task={}", cpus));
  }
  arguments.insert(arguments.end(), {"sh", "-c", script});
  return arguments;
}

uintmax_t size_of(const fs::path& file) {
  std::error_code code;
  const auto size = fs::file_size(file, code);
  return code ? 0 : size;
}

// The last line with text of a file, of what came after its first `from` bytes.
std::string last_line(const fs::path& file, uintmax_t from = 0) {
  const auto text = read_file(file);
  if (!text || text.value().size() <= from) return "";
  std::istringstream lines(text.value().substr(from));
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  last = one_line(last);
  return last.substr(0, last.find_last_not_of(' ') + 1);
}

// For names of files and for the script: letters, digits, and dots and hyphens between them.
std::string plain(std::string_view host) {
  std::string text;
  for (const char c : host) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.';
    text += fine ? c : '-';
  }
  return text;
}

// ---- the check ----

struct Visit {
  std::string host;
  fs::path log, own;
  ChildProcess process;
};

struct Visited {
  std::string host;
  bool missing = false;
  std::string fault;  // "": none
};

Visited result_of(const Visit& visit, const std::optional<ChildEnd>& end) {
  if (!end) return {visit.host, false, fmt::format("did not answer within {}", format_duration(kCheckPatience))};
  if (end->exit_code == 0) return {visit.host};
  if (end->exit_code == kMissing && size_of(visit.own) == 0) return {visit.host, true};
  auto fault = last_line(end->exit_code == kSshFailed ? visit.own : visit.log);
  if (fault.empty()) fault = fmt::format("exit code {}", end->exit_code);
  return {visit.host, false, fault};
}

// Runs the script on all hosts at once; `patience` zero: however long it takes.
std::vector<Visited> visit_all(const std::vector<std::string>& hosts, const std::string& script, Duration patience) {
  const auto ssh = program_in_path("ssh").take();
  const auto scratch = AtomicFolder::create_new(fs::temp_directory_path(), "thinpipe-hosts").take();
  std::vector<Visit> visits;
  for (const auto& host : hosts) {
    const auto log = scratch.path() / fmt::format("{}.log", visits.size()),
               own = scratch.path() / fmt::format("{}.ssh.log", visits.size());
    visits.push_back({host, log, own, ChildProcess::start(ssh, ssh_arguments(host, script, own), log).take()});
  }
  const SystemClock clock;
  const auto begin = clock.now();
  std::vector<Visited> results;
  for (auto& visit : visits) {
    auto end = visit.process.poll();
    while (!end && (patience == Duration{} || clock.now() < begin + patience)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      end = visit.process.poll();
    }
    results.push_back(result_of(visit, end));
  }
  return results;
}

std::vector<std::string> missing_in(const std::vector<Visited>& results) {
  std::vector<std::string> hosts;
  for (const auto& one : results) {
    if (one.missing) hosts.push_back(one.host);
  }
  return hosts;
}

std::vector<std::string> faults_in(const std::vector<Visited>& results) {
  std::vector<std::string> faults;
  for (const auto& one : results) {
    if (!one.fault.empty()) faults.push_back(fmt::format("{}: {}", one.host, one.fault));
  }
  return faults;
}

std::string advice(const std::vector<std::string>& hosts, const std::string& repository) {
  const auto text = [&](const std::string& from) {
    return fmt::format("{}: thinpipe is not installed there; run there `{}` and `{}`", fmt::join(hosts, ", "),
                       clone_command(from), kBuildCommand);
  };
  if (!repository.empty()) return text(repository) + ", or add --install-remote";
  return text("REPOSITORY") + ", where REPOSITORY is where you have thinpipe from, or add --install-from REPOSITORY";
}

}  // namespace

void check_hosts(const std::vector<Host>& hosts, const HostCheck& check) {
  std::vector<std::string> names;
  for (const auto& host : hosts) names.push_back(host.name);
  const auto seen = visit_all(names, check_script(), kCheckPatience);
  auto faults = faults_in(seen);
  if (const auto missing = missing_in(seen); !missing.empty()) {
    if (check.clone_from.empty()) {
      faults.push_back(advice(missing, check.repository));
    } else if (faults.empty()) {
      fmt::print("installing thinpipe on {}; this takes a few minutes\n", fmt::join(missing, ", "));
      std::fflush(stdout);
      for (const auto& one : visit_all(missing, install_script(check.clone_from), {})) {
        if (one.missing || !one.fault.empty()) {
          faults.push_back(fmt::format("{}: cannot install thinpipe: {}", one.host,
                                       one.missing ? "git or a part of thinpipe is missing" : one.fault));
        }
      }
    }
  }
  if (!faults.empty()) throw UserError(fmt::format("{}", fmt::join(faults, "; ")));
}

std::optional<Duration> wait_before_restart(int failures, bool lost) {
  if (failures > (lost ? kMostLosses : kMostFailures)) return std::nullopt;
  const auto doubled = std::chrono::seconds(1LL << std::min(failures - 1, 10));
  return std::min<Duration>(doubled, kLongestWait);
}

RemoteWorkers::RemoteWorkers(const RemoteRun& run, int64_t stages, fs::path logs, const Clock& clock)
    : run_(run), stages_(stages), clock_(clock) {
  for (const auto& host : run.hosts) {
    for (int64_t i = 1; i <= host.slots; ++i) {
      const auto label = fmt::format("{}-{}", plain(host.name), i);
      slots_.push_back({.host = host.name,
                        .label = label,
                        .log = logs / fmt::format("host-{}.log", label),
                        .own = logs / fmt::format("host-{}.ssh.log", label),
                        .due = clock.now() + std::max<int64_t>(0, i - kSlotsAtOnce) * kBetweenSlots});
    }
  }
}

void RemoteWorkers::start(Slot& slot) {
  std::array<int, 2> ends{};
  // A socket, because writing to one that is closed need not raise a signal.
  TP_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, "socketpair: {}",
           std::strerror(errno));
  slot.input = Fd(ends[0]);
  const Fd theirs(ends[1]);
  const auto text = invite_ + "\n";
  ::send(slot.input.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);  // a new socket has room for it
  slot.own_before = size_of(slot.own);
  slot.began = slot.beat = clock_.now();
  const bool is_ssh = run_.reach == HostReach::kSsh;
  const auto name = plain(slot.host.substr(slot.host.find('@') + 1)) + slot.label.substr(slot.label.rfind('-'));
  const auto program = is_ssh ? std::string() : fs::read_symlink("/proc/self/exe").string();
  const auto script = join_script(program, slot.label, name);
  slot.process = ChildProcess::start(program_in_path(is_ssh ? "ssh" : "srun").take(),
                                     is_ssh ? ssh_arguments(slot.host, script, slot.own) : srun_arguments(script),
                                     slot.log, {.input = theirs.get()})
                     .take();
}

void RemoteWorkers::beat(Slot& slot) {
  if (clock_.now() - slot.beat < kInputBeat) return;
  slot.beat = clock_.now();
  ::send(slot.input.get(), "\n", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int64_t RemoteWorkers::usable_slots() const {
  return std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.over; });
}

bool RemoteWorkers::all_ended() const {
  return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.process.has_value(); });
}

std::string RemoteWorkers::reason(const Slot& slot, const ChildEnd& end) const {
  const auto* tool = run_.reach == HostReach::kSsh ? "ssh" : "srun";
  if (end.signal != 0) return fmt::format("signal {} ({}) ended {}", end.signal, ::strsignal(end.signal), tool);
  if (end.exit_code == kSshFailed && run_.reach == HostReach::kSsh) {
    const auto said = last_line(slot.own, slot.own_before);
    return said.empty() ? "the connection or its worker was ended" : said;
  }
  if (const auto words = last_words(slot.log); !words.empty() && end.exit_code <= kMissing) return one_line(words);
  return fmt::format("exit code {}; see {}", end.exit_code, slot.log.string());
}

// What to show to the person.
std::string RemoteWorkers::ended(Slot& slot, const ChildEnd& end) {
  const auto now = clock_.now();
  slot.process.reset();
  slot.input = Fd();
  if (now - slot.began > kGoodLife) slot.failures = 0;
  const bool lost = end.signal != 0 || end.exit_code > kMissing;
  const auto text = fmt::format("{}: {}", slot.host, reason(slot, end));
  const auto wait = end.exit_code == kMissing ? std::nullopt : wait_before_restart(++slot.failures, lost);
  if (wait) {
    slot.due = now + *wait;
    return fmt::format("{}; trying again in {}", text, format_duration(*wait));
  }
  slot.over = true;
  slot.due = TimePoint::max();
  if (usable_slots() < stages_) throw UserError(text);
  return text + "; the run goes on without it";
}

std::vector<std::string> RemoteWorkers::tend(bool stopping) {
  std::vector<std::string> news;
  for (auto& slot : slots_) {
    if (slot.process) {
      const auto end = slot.process->poll();
      if (!end) {
        beat(slot);
      } else if (end->exit_code == 0) {
        // Told to stop, or somebody has ended it over there. It is missed if the run goes on.
        slot.process.reset();
        slot.over = true;
        slot.due = clock_.now() + kEndOfRun;
      } else if (stopping) {
        slot.process.reset();
      } else {
        news.push_back(ended(slot, *end));
      }
    } else if (!stopping && clock_.now() >= slot.due) {
      if (!slot.over) {
        start(slot);
      } else if (slot.due != TimePoint::max()) {
        news.push_back(fmt::format("{}: its worker has left the run", slot.host));
        slot.due = TimePoint::max();
      }
    }
  }
  return news;
}

}  // namespace thinpipe
