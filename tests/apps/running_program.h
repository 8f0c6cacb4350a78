// The program in the background: its output while it runs, the processes it has started, signals for any of them, and
// its run folder. Every wait is for an event (output, an end, a changed folder) and has a deadline.
#pragma once

#include <sys/inotify.h>

#include <fstream>
#include <map>
#include <utility>

#include "apps/program.h"
#include "base/sha256.h"

namespace thinpipe::test {

using Seconds = std::chrono::duration<double>;
using Moment = std::chrono::steady_clock::time_point;

inline Moment now() { return std::chrono::steady_clock::now(); }
inline double seconds_since(Moment start) { return Seconds(now() - start).count(); }

// A process and its arguments. `state` is the kernel's letter: R, S, T (stopped), Z (dead, not yet reaped).
struct ProcessInfo {
  pid_t pid = -1;
  pid_t parent = -1;
  char state = '?';
  Arguments arguments;
};

// The current ones. Skips a process that ends while it is being read.
inline std::vector<ProcessInfo> all_processes() {
  std::vector<ProcessInfo> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string stat, argument;
    std::getline(std::ifstream(entry.path() / "stat") >> std::ws, stat);
    const auto after_name = stat.rfind(") ");
    if (after_name == std::string::npos) continue;
    ProcessInfo info{static_cast<pid_t>(std::stol(name)), -1, stat[after_name + 2], {}};
    info.parent = static_cast<pid_t>(std::stol(stat.substr(after_name + 4)));
    std::ifstream words(entry.path() / "cmdline", std::ios::binary);
    while (std::getline(words, argument, '\0')) info.arguments.push_back(argument);
    found.push_back(std::move(info));
  }
  return found;
}

// Live processes with this folder, or a path in it, on their command line: all that serve or work on a run.
inline std::vector<pid_t> processes_of(const std::filesystem::path& run) {
  std::vector<pid_t> pids;
  for (const auto& info : all_processes()) {
    const bool named = std::any_of(info.arguments.begin(), info.arguments.end(),
                                   [&](const auto& word) { return word.starts_with(run.string()); });
    if (named && info.state != 'Z') pids.push_back(info.pid);
  }
  return pids;
}

class RunningProgram {
 public:
  // `data`: a data directory other than the program's own.
  RunningProgram(const Program& program, const Arguments& arguments, const std::filesystem::path& data = {},
                 const RunOptions& options = {})
      : said_(fmt::format("thinpipe {}", fmt::join(arguments, " "))) {
    if (!data.empty()) ::setenv("THINPIPE_DATA_DIR", data.c_str(), 1);
    launched_ = program.launch(arguments, options);
    ::setenv("THINPIPE_DATA_DIR", program.data().c_str(), 1);
  }
  // Kills it; all that it started dies with it.
  ~RunningProgram() {
    if (reaped_) return;
    ::kill(launched_.pid, SIGKILL);
    (void)launched_.reap();
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  const std::string& out() const { return outcome_.out; }
  const std::string& err() const { return outcome_.err; }
  bool running() const { return !ended_; }
  pid_t pid() const { return launched_.pid; }
  // On its terminal, if it was started with `typed`.
  void type(const std::string& keys) const {
    TP_CHECK(::write(launched_.out.read_end, keys.data(), keys.size()) == std::ssize(keys), "cannot type");
  }
  void signal(int number) const {
    if (!reaped_) ::kill(launched_.pid, number);
  }

  // Its direct children by role: "serve", "worker-2".
  std::map<std::string, pid_t> children() const {
    std::map<std::string, pid_t> found;
    for (const auto& info : all_processes()) {
      if (info.parent != launched_.pid || info.state == 'Z' || info.arguments.size() < 2) continue;
      const auto folder = std::find(info.arguments.begin(), info.arguments.end(), "--folder");
      if (info.arguments[1] == "serve") found["serve"] = info.pid;
      if (folder != info.arguments.end() && folder + 1 != info.arguments.end()) {
        found["worker-" + std::filesystem::path(*(folder + 1)).filename().string()] = info.pid;
      }
    }
    return found;
  }
  pid_t child(const std::string& name) const {
    const auto found = children();
    const auto one = found.find(name);
    return one == found.end() ? -1 : one->second;
  }

  // Reads its output; returns when there is some, it ends, `also` is readable or the time is up.
  void look(Seconds most, int also = -1) {
    std::array<pollfd, 4> waits{{{launched_.out.read_end, POLLIN, 0},
                                 {launched_.err.read_end, POLLIN, 0},
                                 {ended_ ? -1 : launched_.process, POLLIN, 0},
                                 {also, POLLIN, 0}}};
    if (out_closed_) waits[0].fd = -1;
    if (err_closed_) waits[1].fd = -1;
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(most).count();
    if (::poll(waits.data(), waits.size(), static_cast<int>(std::max<int64_t>(0, wait))) <= 0) return;
    if (waits[0].revents != 0) out_closed_ = !take(launched_.out.read_end, outcome_.out);
    if (waits[1].revents != 0) err_closed_ = !take(launched_.err.read_end, outcome_.err);
    if (waits[2].revents != 0) ended_ = true;
  }

  // Reads all output so far.
  void catch_up() {
    for (size_t before = 0; before != out().size() + err().size();) {
      before = out().size() + err().size();
      look(Seconds(0));
    }
  }

  // Waits for the condition, checked at every event and often. False, and a failure, after the timeout.
  template <class Condition>
  bool wait_until(std::string_view what, const Condition& condition, Seconds patience = kPatience) {
    constexpr Seconds kOften{0.01};
    const auto start = now();
    while (!condition()) {
      if (seconds_since(start) > patience.count()) {
        ADD_FAILURE() << said_ << ": waited in vain until " << what << "\n" << out() << err();
        return false;
      }
      look(kOften);
    }
    catch_up();  // a test may check the output before that
    return true;
  }

  bool wait_for_output(const std::string& text, Seconds patience = kPatience) {
    return wait_until(
               fmt::format("it says '{}'", text), [&] { return out().find(text) != std::string::npos || over(); },
               patience) &&
           out().find(text) != std::string::npos;
  }

  // Waits for its end; after the timeout, fails and kills it.
  Outcome wait(Seconds patience = kPatience) {
    if (!wait_until(
            "it ends", [&] { return over(); }, patience))
      ::kill(launched_.pid, SIGKILL);
    outcome_.exit_code = launched_.reap();
    reaped_ = ended_ = out_closed_ = err_closed_ = true;
    return outcome_;
  }

 private:
  bool over() const { return ended_ && out_closed_ && err_closed_; }

  // False: there are no more writers.
  static bool take(int descriptor, std::string& text) {
    char buffer[4096];
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
    return count > 0;
  }

  std::string said_;
  Launched launched_;
  Outcome outcome_;
  bool ended_ = false;
  bool out_closed_ = false;
  bool err_closed_ = false;
  bool reaped_ = false;
};

// Stops a process for a while, so that a run that needs it does not end before a slow test is done.
class Held {
 public:
  explicit Held(pid_t process) : process_(process) {
    TP_CHECK(process > 0, "there is nobody to hold");
    TP_CHECK(::kill(process, SIGSTOP) == 0, "cannot hold {}", process);
  }
  ~Held() { ::kill(process_, SIGCONT); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  pid_t process_;
};

// Counts lines added to metrics.jsonl: one per committed step (or evaluation, if due). A rollback writes a shorter file
// and renames it, which does not count.
class CommitWatch {
 public:
  explicit CommitWatch(const std::filesystem::path& run) : inotify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    TP_CHECK(inotify_ >= 0 && ::inotify_add_watch(inotify_, run.c_str(), IN_MODIFY) >= 0, "inotify: {}",
             std::strerror(errno));
  }
  ~CommitWatch() { ::close(inotify_); }
  CommitWatch(const CommitWatch&) = delete;
  CommitWatch& operator=(const CommitWatch&) = delete;

  int descriptor() const { return inotify_; }

  // New lines since the last call. Two at once may count as one.
  int take() {
    alignas(inotify_event) char buffer[16384];
    int lines = 0;
    for (ssize_t count = 0; (count = ::read(inotify_, buffer, sizeof buffer)) > 0;) {
      for (ssize_t at = 0; at < count;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
        if (event->len > 0 && std::string_view(event->name) == "metrics.jsonl") ++lines;
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      }
    }
    return lines;
  }

 private:
  int inotify_;
};

inline int64_t metrics_lines(const std::filesystem::path& run) {
  const auto text = read_file(run / "metrics.jsonl");
  return text ? std::count(text.value().begin(), text.value().end(), '\n') : 0;
}

// What must not depend on a run's history.
struct RunResult {
  std::string metrics;
  std::string model_sha256;
  bool operator==(const RunResult&) const = default;
};

inline RunResult result_of(const std::filesystem::path& run) {
  const auto metrics = read_file(run / "metrics.jsonl");
  const auto model = read_file(run / "model.safetensors");
  return {metrics ? metrics.value() : "none", model ? sha256_hex(model.value()) : "none"};
}

inline void expect_same_result(const std::filesystem::path& run, const RunResult& expected) {
  const auto found = result_of(run);
  EXPECT_EQ(found.model_sha256, expected.model_sha256) << run;
  EXPECT_EQ(found.metrics, expected.metrics) << run;
}

// The logs of all processes of a run, to find out why a test failed.
inline std::string logs_of(const std::filesystem::path& run) {
  constexpr size_t kEnd = 3000;
  std::string all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run / "logs", ignored)) {
    const auto text = read_file(entry.path());
    if (!text) continue;
    all += fmt::format("== {}\n{}\n", entry.path().filename().string(),
                       text.value().substr(text.value().size() - std::min(text.value().size(), kEnd)));
  }
  return all;
}

// A run of four stages that uses everything that must survive: the basis moves, validation passes come in between, and
// checkpoints are many. `thinpipe train small.toml --run-dir RUN --set ...`
inline void write_small_run(const Program& program) {
  write_file(program / "corpus.txt", english(800, 1));
  write_file(program / "small.toml",
             "[model]\nmode = \"subspace\"\nd = 32\nblocks = 4\nheads = 2\n"
             "[data]\ncorpus = \"corpus.txt\"\nvocab = 300\n"
             "[train]\nsteps = 20\nseq_len = 16\nmicrobatch = 2\nmicrobatches = 4\nthreads = 1\n"
             "eval_every = 13\neval_sequences = 8\nsample_every = 0\n"
             "[pipeline]\nstages = 4\nschedule = \"1f1b\"\n[subspace]\nrank = 8\nupdate_every = 7\n"
             "[boundary]\npack = \"fp32\"\n[link]\nrate = \"80mbit\"\n[checkpoint]\nevery = 5\n");
  if (kTokenises) return;
  const auto prepared = program.run({"small.toml", program.data().string()}, {.program = THINPIPE_PREPARE_PROGRAM});
  TP_CHECK(prepared.exit_code == 0, "{}", prepared.err);
}

inline Arguments small_run(const std::filesystem::path& run, const Arguments& settings = {},
                           const Arguments& more = {}) {
  Arguments arguments{"train", "small.toml", "--run-dir", run.string()};
  for (const auto& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace thinpipe::test
