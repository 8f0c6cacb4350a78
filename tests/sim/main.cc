// thinpipe-sim: plays simulated runs (docs/design/0016-simulator.md).
//
//   thinpipe-sim SEED [SEED..]                plays these
//   thinpipe-sim --from SEED --count N        plays N seeds
//   thinpipe-sim --seconds S [--from SEED]    plays new seeds for that long; prints the first
//   --disk N                                  makes each Nth operation on the coordinator's disk fail, in runs of their
//   own
//   --first                                   stops at the first seed that fails, without shrinking its plan
//   --trace                                   prints every event
//   --only 3,5                                only these items of the plan happen; "none": nothing goes wrong
//
// Exit code 1 if a seed fails; the report says how to replay it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "simulate.h"

namespace {

using thinpipe::sim::Simulator;

struct Options {
  std::vector<uint64_t> seeds;
  std::optional<uint64_t> from, count, disk;
  double time_s = 0;
  bool trace = false, first = false;
  std::optional<std::string> only;
};

std::optional<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&] { return ++i < argc ? std::strtoull(argv[i], nullptr, 10) : 0; };
    if (word == "--trace") {
      options.trace = true;
    } else if (word == "--first") {
      options.first = true;
    } else if (word == "--from") {
      options.from = number();
    } else if (word == "--count") {
      options.count = number();
    } else if (word == "--disk") {
      options.disk = std::max<uint64_t>(1, number());
    } else if (word == "--seconds") {
      options.time_s = static_cast<double>(number());
    } else if (word == "--only" && ++i < argc) {
      options.only = argv[i];
    } else if (!word.empty() && std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
      options.seeds.push_back(std::strtoull(word.c_str(), nullptr, 10));
    } else {
      return std::nullopt;
    }
  }
  const bool plays = !options.seeds.empty() || options.count || options.disk || options.time_s > 0;
  return plays ? std::optional(options) : std::nullopt;
}

// "3,5": items 3 and 5 of the plan.
std::vector<bool> items(const std::string& text) {
  std::vector<bool> kept(64, false);
  for (size_t at = 0; text != "none" && at < text.size();) {
    const auto number = std::strtoull(text.c_str() + at, nullptr, 10);
    if (number < kept.size()) kept[number] = true;
    const auto comma = text.find(',', at);
    at = comma == std::string::npos ? text.size() : comma + 1;
  }
  return kept;
}

int fail_disk(const Simulator& simulator, uint64_t stride) {
  const auto sweep = simulator.fail_disk_operations(stride);
  for (const auto& violation : sweep.violations) fmt::print("{}\n", violation);
  fmt::print("{} runs, {} failures; a run changes files {} times and run.sqlite {} times\n", sweep.plays,
             sweep.violations.size(), sweep.file_operations, sweep.sqlite_operations);
  return sweep.violations.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = parse(argc, argv);
  if (!options) {
    fmt::print(
        stderr,
        "usage: thinpipe-sim [--trace] [--first] [--only 3,5] SEED.. | [--from SEED] --count N | --seconds S | --disk "
        "N\n");
    return 2;
  }
  const Simulator simulator;
  if (options->disk) return fail_disk(simulator, *options->disk);
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed_s = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  uint64_t played = 0, failures = 0, events = 0;
  const auto play = [&](uint64_t seed) {
    const auto outcome =
        simulator.play(seed, options->only ? items(*options->only) : std::vector<bool>(), options->trace);
    ++played;
    events += outcome.events;
    if (outcome.violation.empty()) return;
    ++failures;
    if (options->only || options->trace || options->first) {
      fmt::print("seed {} fails: {}\n", seed, outcome.violation);
    } else {
      fmt::print("{}", simulator.report(seed));
    }
    std::fflush(stdout);
  };
  for (const auto seed : options->seeds) play(seed);
  const uint64_t most_failures = options->first ? 1 : 5;
  uint64_t next = options->from ? *options->from : std::random_device()() * uint64_t{1000};
  if (options->time_s > 0) fmt::print("the first seed is {}\n", next);
  for (uint64_t i = 0; options->count && i < *options->count && failures < most_failures; ++i) play(next++);
  while (options->time_s > 0 && elapsed_s() < options->time_s && failures < most_failures) play(next++);
  fmt::print("{} seeds, {} failures, {} events, {:.0f} seeds per minute\n", played, failures, events,
             60 * static_cast<double>(played) / elapsed_s());
  return failures == 0 ? 0 : 1;
}
