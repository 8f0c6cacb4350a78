// thinpipe launch slurm: writes a job script for a run and submits it. The script runs `thinpipe train --slurm`, which
// is the coordinator and starts a step of the job per stage (src/run/remote_workers.h).
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>

#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/say.h"
#include "commands.h"
#include "config/config_file.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;

// A checkpoint must be written in this time before the limit. Slurm may send the signal up to a minute early.
constexpr int kNotice_s = 120;

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string name_of_now() {
  const auto now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[32] = {};
  (void)std::strftime(text, sizeof text, "%Y-%m-%d-%H-%M-%S", &parts);
  return text;
}

// Absolute, because the job may begin in another folder.
fs::path run_folder(const SlurmArguments& arguments) {
  const auto name = arguments.run_dir.empty() && arguments.name.empty() ? name_of_now() : arguments.name;
  return fs::absolute(folder_for_new_run(name, arguments.run_dir).take());
}

// One line of the script each: a line end in a value would begin another line.
std::string directives(const SlurmArguments& arguments, int64_t stages, const fs::path& run, const fs::path& output) {
  std::vector<std::string> options{"--job-name=thinpipe-" + run.filename().string(),
                                   fmt::format("--ntasks={}", stages),
                                   fmt::format("--signal=B:TERM@{}", kNotice_s),
                                   "--requeue",
                                   "--open-mode=append",
                                   "--output=" + output.string()};
  if (arguments.cpus > 0) options.push_back(fmt::format("--cpus-per-task={}", arguments.cpus));
  if (!arguments.time.empty()) options.push_back("--time=" + arguments.time);
  if (!arguments.partition.empty()) options.push_back("--partition=" + arguments.partition);
  for (const auto& option : arguments.options) {
    if (!option.starts_with('-')) {
      throw UserError(
          fmt::format("--sbatch {}: needs an option of sbatch, such as --sbatch=--mem=8G", in_quotes(option, 60)));
    }
    options.push_back(option);
  }
  std::string text;
  for (const auto& option : options) {
    if (std::any_of(option.begin(), option.end(), [](unsigned char c) { return c < ' '; })) {
      throw UserError(fmt::format("{}: an option of sbatch is one line", in_quotes(option, 60)));
    }
    text += fmt::format("#SBATCH {}\n", option);
  }
  return text;
}

std::string train_words(const SlurmArguments& arguments) {
  std::string words = "train";
  if (!arguments.config.empty()) words += " " + quoted(fs::absolute(arguments.config).string());
  for (const auto& setting : arguments.overrides) words += " --set " + quoted(setting);
  return words;
}

// {0}: directives, {1}: program, {2}: run, {3}: words for a new run, {4}: this script's file.
constexpr std::string_view kScript = R"(#!/bin/bash
# Written by `thinpipe launch slurm`. This script runs the coordinator; a step of the job holds each stage.
{0}
program={1}
run={2}
script={4}

if [ -e "$run/config.toml" ]; then
  set -- train --resume "$run"
else
  set -- {3} --run-dir "$run"
fi
"$program" "$@" --slurm --dashboard off &
training=$!

# Before the time limit Slurm signals this script alone. The run then writes a checkpoint and ends with 130.
signalled= stopped=
trap 'signalled=1 stopped=1; kill -TERM "$training"' TERM
while
  wait "$training"
  code=$?
  [ "$signalled" ]  # the signal has ended the wait, not the training
do
  signalled=
done

if [ "$stopped" ] && [ "$code" = 130 ]; then
  echo "the job is queued again; cancel it with: scancel $SLURM_JOB_ID"
  scontrol requeue "$SLURM_JOB_ID" || {{ [ "$script" ] && sbatch "$script"; }}
fi
exit "$code"
)";

}  // namespace

void launch_slurm(const SlurmArguments& arguments) {
  const auto config = arguments.config.empty() ? parse_config("", "the command line", arguments.overrides)
                                               : load_config(arguments.config, arguments.overrides);
  const auto run = run_folder(arguments);
  const auto folder = fs::absolute(data_dir()) / "slurm";
  const auto script = folder / (run.filename().string() + ".sbatch"),
             output = folder / (run.filename().string() + ".log");
  const auto text = fmt::format(kScript, directives(arguments, config.pipeline.stages, run, output),
                                quoted(fs::read_symlink("/proc/self/exe").string()), quoted(run.string()),
                                train_words(arguments), quoted(arguments.print ? "" : script.string()));
  if (arguments.print) {
    say("{}", text);
    return;
  }
  std::error_code ignored;
  if (fs::exists(run / "config.toml", ignored)) {
    throw UserError(
        fmt::format("{}: this run exists already; submit {} again to resume it", run.string(), script.string()));
  }
  make_directories(folder).take();
  write_file_atomically(script, text).take();
  say("run: {}\njob script: {}\noutput: {}\n", run.string(), script.string(), output.string());
  std::fflush(stdout);
  ::execlp("sbatch", "sbatch", script.c_str(), nullptr);
  throw UserError(fmt::format("cannot start sbatch: {}; --print shows the script", std::strerror(errno)));
}

}  // namespace thinpipe
