// Runs the real program as a person would: a separate process, in a scratch folder that also holds its data directory.
// A run that does not end is killed and counts as a failure, so that no test hangs.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/result.h"
#include "support/sanitized.h"
#include "support/scratch.h"
#include "text/prepare.h"
#include "text/text_files.h"

namespace thinpipe::test {

using Arguments = std::vector<std::string>;

struct Outcome {
  int exit_code = -1;  // -1: killed, by us or by a fault
  std::string out;     // standard output
  std::string err;     // standard error
};

struct RunOptions {
  bool terminal = false;                 // standard output is a pseudo-terminal, else a pipe
  uint16_t columns = 0;                  // of the terminal; 0: it does not say
  bool typed = false;                    // the terminal is standard input too: RunningProgram::type()
  rlim_t address_space = RLIM_INFINITY;  // bytes of memory it may map
  std::string network = "";              // network namespace; default: this one
  std::string program = THINPIPE_PROGRAM;
  std::string input = "/dev/null";  // a file as standard input
};

// Two connected descriptors: the program writes to the second, tests read from the first.
struct Channel {
  int read_end = -1;
  int write_end = -1;

  static Channel pipe() {
    std::array<int, 2> ends{};
    TP_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2: {}", std::strerror(errno));
    return {ends[0], ends[1]};
  }
  static Channel terminal(uint16_t columns, bool typed) {
    Channel channel;
    termios raw{};
    ::cfmakeraw(&raw);                        // else the terminal itself would write \r before every \n
    if (typed) raw.c_lflag |= ECHO | ICANON;  // libedit edits no line of a terminal that does not echo
    const winsize size{.ws_row = static_cast<unsigned short>(columns == 0 ? 0 : 24), .ws_col = columns};
    TP_CHECK(::openpty(&channel.read_end, &channel.write_end, nullptr, &raw, &size) == 0, "openpty: {}",
             std::strerror(errno));
    return channel;
  }
};

inline bool has_pseudo_terminals() {
  int outer = -1, inner = -1;
  if (::openpty(&outer, &inner, nullptr, nullptr, nullptr) != 0) return false;
  ::close(outer);
  ::close(inner);
  return true;
}

// A running program and the descriptors to watch it.
struct Launched {
  pid_t pid = -1;
  int process = -1;  // its pidfd
  Channel out;
  Channel err;

  // Waits for its end and closes everything. Returns its exit code; -1 after a signal.
  int reap() {
    int status = 0;
    ::waitpid(pid, &status, 0);
    for (const int descriptor : {process, out.read_end, err.read_end}) ::close(descriptor);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

// Long enough for anything on a busy machine. Less than ctest's timeout for a test, so that the test can say what it
// waited for and end what it started.
constexpr std::chrono::seconds kPatience{240};

// Reads both channels until the process has ended and they are empty; false if that takes too long.
inline bool collect(int process, Channel& out, Channel& err, Outcome& outcome) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::array<pollfd, 3> waits{{{out.read_end, POLLIN, 0}, {err.read_end, POLLIN, 0}, {process, POLLIN, 0}}};
  const std::array<std::string*, 2> texts{&outcome.out, &outcome.err};
  while (std::any_of(waits.begin(), waits.end(), [](const pollfd& wait) { return wait.fd >= 0; })) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const int ready = ::poll(waits.data(), waits.size(), static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = ::read(waits[i].fd, buffer, sizeof buffer);
      if (count > 0) texts[i]->append(buffer, static_cast<size_t>(count));
      if (count <= 0) waits[i].fd = -1;  // a terminal without writers ends with EIO
    }
    if (waits[2].revents != 0) waits[2].fd = -1;
  }
  return true;
}

// A folder to run the program in. Tests put their files beside data/, which is the program's.
class Program {
 public:
  // Empty: a new scratch folder.
  explicit Program(const std::filesystem::path& folder = {}) : folder_(folder.empty() ? scratch_.path() : folder) {
    ::setenv("THINPIPE_DATA_DIR", (folder_ / "data").c_str(), 1);
    ::setenv("GOMP_SPINCOUNT", "100", 1);  // spinning threads would take cores from parallel tests
  }

  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }
  std::filesystem::path data() const { return folder_ / "data"; }

  // Starts it and does not wait.
  Launched launch(const Arguments& arguments, const RunOptions& options = {}) const {
    Launched launched{-1, -1, options.terminal ? Channel::terminal(options.columns, options.typed) : Channel::pipe(),
                      Channel::pipe()};
    const int network =
        options.network.empty() ? -1 : ::open(("/run/netns/" + options.network).c_str(), O_RDONLY | O_CLOEXEC);
    TP_CHECK(options.network.empty() || network >= 0, "no network namespace {}", options.network);
    std::vector<char*> argv{const_cast<char*>("thinpipe")};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    launched.pid = ::fork();
    TP_CHECK(launched.pid >= 0, "fork: {}", std::strerror(errno));
    if (launched.pid == 0) {
      become_program(argv.data(), launched.out.write_end, launched.err.write_end, network, options);
    }
    if (network >= 0) ::close(network);
    ::close(launched.out.write_end);
    ::close(launched.err.write_end);
    // Not glibc's function: its 2.36 header does not declare it as C.
    launched.process = static_cast<int>(::syscall(SYS_pidfd_open, launched.pid, 0));
    TP_CHECK(launched.process >= 0, "pidfd_open: {}", std::strerror(errno));
    return launched;
  }

  Outcome run(const Arguments& arguments, const RunOptions& options = {}) const {
    auto launched = launch(arguments, options);
    Outcome outcome;
    if (!collect(launched.process, launched.out, launched.err, outcome)) {
      ADD_FAILURE() << "still running after four minutes: thinpipe " << fmt::format("{}", fmt::join(arguments, " "));
      ::kill(launched.pid, SIGKILL);
    }
    outcome.exit_code = launched.reap();
    return outcome;
  }

  // Relative paths of all files and folders.
  std::set<std::string> contents() const {
    std::set<std::string> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      paths.insert(entry.path().lexically_relative(folder_).string());
    }
    return paths;
  }

 private:
  // In the child: only calls allowed between fork and exec.
  [[noreturn]] void become_program(char** argv, int out, int err, int network, const RunOptions& options) const {
    const rlimit memory{options.address_space, options.address_space};
    if (network >= 0 && ::setns(network, CLONE_NEWNET) != 0) ::_exit(98);
    if (::chdir(folder_.c_str()) == 0 && ::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(err, STDERR_FILENO) >= 0 &&
        ::dup2(options.typed ? out : ::open(options.input.c_str(), O_RDONLY), STDIN_FILENO) >= 0 &&
        ::setrlimit(RLIMIT_AS, &memory) == 0) {
      ::execv(options.program.c_str(), argv);
    }
    ::_exit(99);
  }

  ScratchFolder scratch_;
  std::filesystem::path folder_;
};

// A very short run of three steps: `thinpipe train tiny.toml --in-process`. Sets every key its tests rely on, so that
// the defaults may change.
inline void write_tiny_run(const Program& program) {
  write_file(program / "corpus.txt", english(800, 1));
  write_file(program / "tiny.toml",
             "[model]\nmode = \"dense\"\nd = 32\nblocks = 2\nheads = 2\n"
             "[data]\ncorpus = \"corpus.txt\"\nvocab = 300\n"
             "[train]\nsteps = 3\nseq_len = 16\nmicrobatch = 4\nmicrobatches = 1\n"
             "[pipeline]\nstages = 1\n[subspace]\nrank = 8\nfull_rank_tail = 1\n[boundary]\npack = \"fp32\"\n");
}

// thinpipe train tiny.toml --in-process --set ... --set ... more
inline Arguments tiny_run(const Arguments& settings = {}, const Arguments& more = {}) {
  Arguments arguments{"train", "tiny.toml", "--in-process"};
  for (const auto& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The JSON values of a .jsonl file.
inline std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_file(file).take());
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

inline void expect_one_line(const Outcome& outcome, const Arguments& parts) {
  EXPECT_TRUE(outcome.err.starts_with("thinpipe: ")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(outcome.err.ends_with("\n")) << outcome.err;
  EXPECT_LT(outcome.err.size(), 400U) << "too long to read: " << outcome.err;
  for (const auto& part : parts)
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " not in " << outcome.err;
}

// A failed command may leave only complete prepared corpora, which the next attempt can use.
inline void expect_nothing_half_written(const Program& program, const std::set<std::string>& before) {
  for (const auto& path : program.contents()) {
    if (before.contains(path) || path == "data" || path == "data/prepared") continue;
    const auto relative = std::filesystem::path(path).lexically_relative("data/prepared");
    const auto folder = program.data() / "prepared" / *relative.begin();
    EXPECT_TRUE(path.starts_with("data/prepared/") && open_prepared(folder).ok()) << "left behind: " << path;
  }
}

// Exit code 2, one line that holds all of `parts`, nothing left behind.
inline void expect_refused(const Program& program, const Arguments& arguments, const Arguments& parts,
                           const RunOptions& options = {}) {
  SCOPED_TRACE(fmt::format("thinpipe {}", fmt::join(arguments, " ")));
  const auto before = program.contents();
  const auto outcome = program.run(arguments, options);
  EXPECT_EQ(outcome.exit_code, 2);
  expect_one_line(outcome, parts);
  expect_nothing_half_written(program, before);
}

}  // namespace thinpipe::test
