// thinpipe clean: removes files that no run needs any more, after a question. What could be the newest weights of a run
// always stays.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/say.h"
#include "base/units.h"
#include "commands.h"
#include "config/config_file.h"
#include "run/run_files.h"
#include "run_folders.h"
#include "run_summary.h"
#include "store/checkpoints.h"
#include "text/prepared.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

struct Rubbish {
  fs::path path;
  std::string why;
  fs::path run;  // that it is part of; empty: of none
  Fd lock;       // so that nobody builds in it meanwhile
};

bool is_running(const fs::path& run) { return state_of(run) == "running"; }

bool has_steps(const fs::path& run) {
  std::error_code code;
  return fs::file_size(run / "metrics.jsonl", code) > 0 && !code;
}

// A complete run needs only the checkpoint of its last step, to be trained longer. The others go if that one is whole,
// and model.safetensors is there, too; those that checkpoint.keep_every keeps were wanted.
void find_in_complete_run(const fs::path& run, std::vector<Rubbish>& found) {
  const auto outcome = read_outcome(run);
  std::error_code ignored;
  if (!outcome || !outcome.value().complete || !fs::exists(run / "model.safetensors", ignored)) return;
  const auto newest = newest_checkpoint(run);
  if (!newest || newest.value().manifest.id.step != outcome.value().step) return;
  if (fs::exists(run / "workers", ignored)) found.push_back({run / "workers", "the stages' copies", run, Fd()});
  const int64_t keep_every = load_config(run / "config.toml").checkpoint.keep_every;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", ignored)) {
    const auto id = checkpoint_id(entry.path().filename().string());
    if (!id || *id == newest.value().manifest.id || (keep_every > 0 && id->step % keep_every == 0)) continue;
    found.push_back({entry.path(), "an earlier checkpoint of a complete run", run, Fd()});
  }
}

void find_in_run(const fs::path& run, std::vector<Rubbish>& found) {
  if (is_running(run)) return;
  std::error_code ignored;
  const auto outcome = read_outcome(run);
  const bool imported = fs::exists(run / "origin.txt", ignored);
  if (outcome && outcome.value().failed && !has_steps(run) && !has_model(run) && !imported) {
    found.push_back({run, "a run that failed before its first step", run, Fd()});
    return;
  }
  try {
    find_in_complete_run(run, found);
  } catch (const UserError&) {  // a config that cannot be read: nothing is known about this run, so it stays
  }
}

// What a killed process was still building: nobody holds its lock (AtomicFolder).
void find_half_made(const fs::path& parent, std::vector<Rubbish>& found) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with(".") || !name.ends_with(".partial")) continue;
    Fd lock(::open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    found.push_back({entry.path(), "left half-made", {}, std::move(lock)});
  }
}

uint64_t bytes_of(const fs::path& path) {
  uint64_t bytes = 0;
  std::error_code code;
  for (auto entry = fs::recursive_directory_iterator(path, code); !code && entry != fs::recursive_directory_iterator();
       entry.increment(code)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) bytes += entry->file_size(ignored);
  }
  return bytes;
}

bool agreed(const std::string& what) {
  if (::isatty(STDIN_FILENO) == 0) throw UserError(fmt::format("give --yes to remove {} for good", what));
  say("remove {} for good? [y/N] ", what);
  std::fflush(stdout);
  std::string answer;
  return std::getline(std::cin, answer) && (answer == "y" || answer == "yes");
}

}  // namespace

void clean(bool yes) {
  std::vector<Rubbish> found;
  for (const char* folder : {"runs", "prepared"}) find_half_made(data_dir() / folder, found);
  for (const auto& corpus : list_prepared(data_dir())) {
    if (!corpus.problem.empty())
      found.push_back({corpus.folder, "a damaged prepared text, made again when needed", {}, Fd()});
  }
  for (const auto& run : known_runs()) find_in_run(run, found);
  if (found.empty()) return say("nothing to remove: every file is needed\n");
  uint64_t bytes = 0;
  for (const auto& one : found) {
    const auto size = bytes_of(one.path);
    bytes += size;
    say("{:>9}  {}  ({})\n", format_size(size), one_line(one.path.string()), one.why);
  }
  const auto what = fmt::format("{} folder(s), {}", found.size(), format_size(bytes));
  if (!yes && !agreed(what)) return say("they stay\n");
  for (const auto& one : found) {
    // Whoever resumes a run removes its outcome first.
    if (!one.run.empty() && (is_running(one.run) || !read_outcome(one.run))) {
      say("{} runs again: {} stays\n", one.run.filename().string(), one.path.string());
    } else {
      remove_tree(one.path).take();
    }
  }
  say("removed {}\n", what);
}

}  // namespace thinpipe
