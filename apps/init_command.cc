// thinpipe init: five questions, then a commented config and what it will cost.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/say.h"
#include "base/units.h"
#include "boundary/boundary.h"
#include "commands.h"
#include "config/config_file.h"
#include "config/keys.h"
#include "plan/first_config.h"
#include "plan/machine.h"
#include "plan/memory_plan.h"
#include "run/join.h"
#include "text/kjv.h"
#include "text/prepare.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostMachines = 256;
// As `train` does, leaves a tenth to others.
constexpr double kMemoryToUse = 0.9;
constexpr double kBytesPerMiB = 1 << 20;

struct Question {
  const char* option;
  std::string given;  // its value; empty: ask
  const char* text;
  const char* standard;                            // what an empty answer means
  std::function<void(const std::string&)> answer;  // throws UserError for one that cannot be used
};

void answer(const Question& question, const std::string& what, const std::string& text) {
  try {
    question.answer(text);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{} {}: {}", what, in_quotes(text, 80), error.what()));
  }
}

// On a terminal a bad answer may be given again.
void ask(const Question& question) {
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  while (true) {
    say("{} [{}] ", question.text, question.standard);
    std::fflush(stdout);
    std::string line;
    if (!std::getline(std::cin, line)) {
      say("\n");
      throw UserError(
          fmt::format("the input ended before the answer to \"{}\"; {} gives it", question.text, question.option));
    }
    if (!terminal) say("{}\n", one_line(line));
    try {
      return answer(question, "the answer", line.empty() ? question.standard : line);
    } catch (const UserError& error) {
      if (!terminal) throw;
      say("{}\n", error.what());
    }
  }
}

uint64_t bytes_of_text(const fs::path& source) {
  std::error_code code;
  if (fs::is_regular_file(source, code)) return fs::file_size(source, code);
  uint64_t bytes = 0;
  for (auto entry = fs::recursive_directory_iterator(source, code);
       !code && entry != fs::recursive_directory_iterator(); entry.increment(code)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) bytes += entry->file_size(ignored);
  }
  return bytes;
}

// Reads the text once: it must be text, and its size decides the vocabulary.
void take_text(const std::string& answer, FirstAnswers& answers) {
  const std::vector<std::string> settings{"data.corpus=" + toml_text(answer)};
  const auto data = parse_config("", "init", settings).data;
  const SystemClock clock;
  PrepareLine line(stdout, ::isatty(STDOUT_FILENO) == 1, clock);
  answers.vocab = vocab_for_text(data, std::ref(line));
  answers.corpus = answer;
  answers.text_bytes = bytes_of_text(answer == "kjv" ? kjv_file() : fs::path(answer));
}

int64_t machines_in(const std::string& answer) {
  int64_t machines = 0;
  const auto [end, code] = std::from_chars(answer.data(), answer.data() + answer.size(), machines);
  if (code == std::errc() && end == answer.data() + answer.size() && 1 <= machines && machines <= kMostMachines) {
    return machines;
  }
  throw UserError(fmt::format("needs a whole number from 1 to {}", kMostMachines));
}

Duration time_in(const std::string& answer) {
  const auto time = parse_duration(answer);
  if (time && time.value() >= std::chrono::minutes(1)) return time.value();
  throw UserError("needs a time of at least 1min, such as 30min, 4h or 3d");
}

uint64_t rate_in(const std::string& answer) {
  const auto rate = parse_rate(answer);
  if (rate) return rate.value();
  throw UserError("needs a rate such as 10mbit, or unlimited");
}

Purpose purpose_in(const std::string& answer) {
  if (answer == "export") return Purpose::kExport;
  if (answer == "loss") return Purpose::kLoss;
  throw UserError("needs export (a model for other programs) or loss (the lowest loss in that time)");
}

FirstAnswers answers_of(const InitArguments& given) {
  FirstAnswers answers;
  const Question text{"--text", given.text, "What text? A file, a folder, or kjv, the built-in Bible", "kjv",
                      [&](const std::string& said) { take_text(said, answers); }};
  const std::vector<Question> others{
      {"--machines", given.machines, "How many machines?", "1",
       [&](const std::string& said) { answers.machines = machines_in(said); }},
      {"--line", given.line, "How much can the slowest of them send?", "10mbit",
       [&](const std::string& said) { answers.line_bits_per_s = rate_in(said); }},
      {"--time", given.time, "How long may it take?", "1h",
       [&](const std::string& said) { answers.time = time_in(said); }},
      {"--for", given.purpose, "What for? export: for other programs; loss: the lowest loss", "export",
       [&](const std::string& said) { answers.purpose = purpose_in(said); }}};
  // Options first: a long text is not read for nothing.
  for (const auto& question : others) {
    if (!question.given.empty()) answer(question, question.option, question.given);
  }
  if (text.given.empty()) {
    ask(text);
  } else {
    answer(text, text.option, text.given);
  }
  for (const auto& question : others) {
    const bool has_lines = answers.machines > 1;
    if (question.given.empty() && (has_lines || question.option != std::string_view("--line"))) ask(question);
  }
  return answers;
}

StageSpeed measured_speed(int64_t vocab) {
  const auto config = speed_config(vocab);
  const auto machine = check_machine_alone(config, vocab, data_dir()).machine;
  if (machine.block_s() > 0) return {machine.block_s(), machine.ends_s()};
  throw UserError("memory: too little is free to measure how fast this machine is");
}

std::string time_text(double time_s) {
  return format_duration(std::chrono::seconds(std::max<int64_t>(1, std::llround(time_s))));
}

// One line per machine, for the terminal and for the file.
std::vector<std::string> estimate(const FirstConfig& first) {
  const auto& config = first.config;
  const auto steps = static_cast<double>(config.train.steps);
  std::vector<std::string> lines{
      fmt::format("{:.1f} million weights; about {} for {} steps of {:.{}f} s, if every machine is like this one",
                  first.parameters / 1e6, time_text(steps * first.step_s), config.train.steps, first.step_s,
                  first.step_s < 10 ? 2 : 0)};
  for (int64_t stage = 0; stage < config.pipeline.stages; ++stage) {
    const auto traffic = step_traffic(config, config.data.vocab, stage);
    const auto bytes = traffic.sent + traffic.received;
    lines.push_back(
        fmt::format("machine {}: at most {:.0f} MiB of memory", stage,
                    static_cast<double>(memory_plan(config, config.data.vocab, stage).total()) / kBytesPerMiB));
    if (bytes == 0) continue;
    lines.back() +=
        fmt::format(", {:.2f} MiB over the network in a step, {:.1f} MiB in all",
                    static_cast<double>(bytes) / kBytesPerMiB, static_cast<double>(bytes) * steps / kBytesPerMiB);
  }
  return lines;
}

}  // namespace

void init(const InitArguments& arguments) {
  const fs::path file = arguments.file;
  if (file.extension() != ".toml") {
    throw UserError(fmt::format("{}: needs a name that ends in .toml", file.string()));
  }
  std::error_code ignored;
  if (!arguments.force && fs::exists(file, ignored)) {
    throw UserError(fmt::format("{} exists: --force replaces it, another name keeps it", file.string()));
  }
  const auto answers = answers_of(arguments);
  say("measuring how fast this machine is\n");
  std::fflush(stdout);
  const auto available = static_cast<double>(available_memory_bytes());
  const auto first =
      first_config(answers, measured_speed(answers.vocab), static_cast<uint64_t>(kMemoryToUse * available));
  check_boundary(first.config);
  auto lines = estimate(first);
  if (first.text_is_the_limit) {
    lines.emplace_back(
        "the text is short: more steps would only repeat it, and a larger model would learn it by heart");
  }
  auto head = lines;
  head.insert(head.begin(), fmt::format("Written by `thinpipe init` for {} and {}. docs/config.md explains "
                                        "every key. Estimate:",
                                        counted(answers.machines, "machine"), format_duration(answers.time)));
  const auto text = to_text(first, head);
  (void)parse_config(text, file.string());
  write_file_atomically(file, text).take();
  for (const auto& line : lines) say("{}\n", line);
  say("wrote {}; next: thinpipe {} {}\n", file.string(), answers.machines > 1 ? "serve" : "train", file.string());
}

}  // namespace thinpipe
