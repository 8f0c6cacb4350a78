// bench dashboard: whether watching slows a run, and how soon the dashboard answers about a long one.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
#include "base/work_line.h"
#include "bench/bench.h"
#include "bench/open_run.h"
#include "config/config_file.h"
#include "run/child_process.h"
#include "run/run_files.h"

namespace thinpipe {
namespace {

constexpr int kStreams = 4;
constexpr int kIdle = 1000;
constexpr int kAnswers = 50;

// `thinpipe dashboard` for a run's folder.
class WatchedFolder {
 public:
  WatchedFolder(const std::string& program, const std::filesystem::path& folder)
      : process_(ChildProcess::start(program, {"dashboard", folder.string()}, folder / "dashboard.log").take()) {
    const SystemClock clock;
    const auto deadline = clock.now() + std::chrono::seconds(60);
    while (true) {
      const auto place = read_dashboard_place(folder);
      if (place && place.value().pid == process_.pid()) port_ = place.value().port;
      if (port_ > 0) return;
      if (process_.poll() || clock.now() > deadline)
        throw UserError(fmt::format("the dashboard did not start: {}", last_words(folder / "dashboard.log")));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  httplib::Client client() const {
    httplib::Client made("127.0.0.1", port_);
    made.set_read_timeout(std::chrono::seconds(120));
    return made;
  }
  int port() const { return port_; }
  pid_t pid() const { return process_.pid(); }

 private:
  ChildProcess process_;
  int port_ = 0;
};

// Streams that are read and connections that are only held, until it is destroyed.
class Watchers {
 public:
  explicit Watchers(const WatchedFolder& dashboard) {
    for (int i = 0; i < kStreams; ++i) {
      streams_.emplace_back([this, &dashboard] {
        while (!over_) {
          (void)dashboard.client().Get("/api/v1/stream", [this](const char*, size_t) { return !over_.load(); });
          if (!over_) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
      });
    }
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<uint16_t>(dashboard.port()));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < kIdle; ++i) {
      Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)::connect(connection.get(), reinterpret_cast<sockaddr*>(&place), sizeof place);
      idle_.push_back(std::move(connection));
    }
  }
  ~Watchers() {
    over_ = true;
    for (auto& stream : streams_) stream.join();
  }
  Watchers(const Watchers&) = delete;
  Watchers& operator=(const Watchers&) = delete;

 private:
  std::atomic<bool> over_ = false;
  std::vector<std::thread> streams_;
  std::vector<Fd> idle_;
};

double middle_of(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

// Steps per second from one commit to the first one after `least_s`.
double speed(OpenRun& run, double least_s) {
  const SystemClock clock;
  int64_t step = run.status().step();
  const auto next = [&] {
    run.wait_until("the next step is committed", [&] { return run.status().step() > step; });
    step = run.status().step();
    return clock.now();
  };
  const auto begin = next();
  const int64_t first = step;
  auto end = begin;
  while (seconds(end - begin) < least_s) end = next();
  return static_cast<double>(step - first) / seconds(end - begin);
}

double watched_over_unwatched(const BenchDashboardOptions& options) {
  const std::vector<std::string> settings{"train.steps=1000000", "train.threads=1",    "link.rate=unlimited",
                                          "pipeline.stages=2",   "train.eval_every=0", "train.sample_every=0"};
  const auto config = parse_config("", "the defaults", settings);
  OpenRun run(options.program, "dashboard", config);
  run.serve(2);
  run.join("host-0");
  run.join("host-1");
  run.wait_until("the first steps are committed", [&] { return run.status().step() > 3; });
  std::vector<double> ratios;
  WorkLine line("measuring", "rounds", static_cast<uint64_t>(options.rounds));
  for (int64_t round = 0; round < options.rounds; ++round) {
    const double before = speed(run, options.seconds);
    double watched = 0;
    {
      const WatchedFolder dashboard(options.program, run.folder() / "run");
      const Watchers watchers(dashboard);
      watched = speed(run, 2 * options.seconds);
    }
    const double after = speed(run, options.seconds);
    ratios.push_back(2 * watched / (before + after));
    above_live_line([&] {
      fmt::print("{:.3f} steps/s unwatched, {:.3f} with {} streams and {} idle connections: {:.3f}\n",
                 (before + after) / 2, watched, kStreams, kIdle, ratios.back());
      std::fflush(stdout);
    });
    line.add();
  }
  return middle_of(ratios);
}

// A run's folder with a million made-up steps.
void write_long_run(const std::filesystem::path& folder, int64_t steps) {
  write_file_atomically(folder / "config.toml", fmt::format("[train]\nsteps = {}\n", steps)).take();
  std::ofstream metrics(folder / "metrics.jsonl"), timing(folder / "timing.jsonl");
  for (int64_t step = 1; step <= steps; ++step) {
    metrics << fmt::format(
        "{{\"step\":{},\"loss\":{:.6f},\"grad_norm\":0.7,\"lr\":0.01,\"bytes\":[{{\"forward\":40000,"
        "\"backward\":32000}}]}}\n",
        step, 2 + 6 / (1 + 1e-3 * static_cast<double>(step)));
    timing << fmt::format(
        "{{\"step\":{},\"seconds\":{:.3f},\"stages\":[{{\"total_s\":0.9,\"forward_s\":0.3,"
        "\"backward_s\":0.4,\"update_s\":0.05,\"wait_s\":0.1}}]}}\n",
        step, 1.01 * static_cast<double>(step));
  }
}

struct Answers {
  double loaded_s = 0, median_ms = 0, most_ms = 0;
};

Answers time_answers(const BenchDashboardOptions& options, const std::filesystem::path& folder) {
  const SystemClock clock;
  const auto started = clock.now();
  const WatchedFolder dashboard(options.program, folder);
  auto client = dashboard.client();
  while (true) {
    const auto answer = client.Get("/api/v1/status");
    if (!answer) throw UserError("the dashboard does not answer");
    if (nlohmann::json::parse(answer->body)["step"] == options.steps) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  Answers result{.loaded_s = seconds(clock.now() - started)};
  std::vector<double> times;
  for (int i = 0; i < kAnswers; ++i) {
    const auto begin = clock.now();
    const auto answer = client.Get("/api/v1/steps?points=1000");
    if (!answer || answer->status != 200) throw UserError("the dashboard does not answer");
    times.push_back(1e3 * seconds(clock.now() - begin));
  }
  result.median_ms = middle_of(times);
  result.most_ms = *std::max_element(times.begin(), times.end());
  return result;
}

}  // namespace

void bench_dashboard(const BenchDashboardOptions& options, bool json) {
  const auto folder = data_dir() / "bench" / fmt::format("dashboard-{}", ::getpid());
  make_directories(folder).take();
  write_long_run(folder, options.steps);
  const auto answers = time_answers(options, folder);
  remove_tree(folder).take();
  fmt::print("{} steps: read in {:.1f} s; 1000 points of them in {:.1f} ms (median of {}), at most {:.1f} ms\n",
             options.steps, answers.loaded_s, answers.median_ms, kAnswers, answers.most_ms);
  std::fflush(stdout);
  const double ratio = watched_over_unwatched(options);
  if (!json) return;
  const nlohmann::ordered_json object = {{"watched_over_unwatched", ratio},
                                         {"steps", options.steps},
                                         {"loaded_s", answers.loaded_s},
                                         {"answer_ms", answers.median_ms},
                                         {"slowest_answer_ms", answers.most_ms}};
  fmt::print("{}\n", object.dump());
}

}  // namespace thinpipe
