// The files of a run: config.toml as used, metrics.jsonl and timing.jsonl (one JSON object per line; the first is equal
// for equal runs, the second never is), the final weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "config/run_config.h"

namespace thinpipe {

// A file that only grows, by whole lines. A line that does not fit on the disk is removed, so that the file always
// parses.
class LineLog {
 public:
  static Result<LineLog> create(const std::filesystem::path& path);
  // Replaces the contents by these lines atomically; later lines are appended to them.
  static Result<LineLog> rewrite(const std::filesystem::path& path, const std::string& lines);
  ~LineLog();
  LineLog(LineLog&& other) noexcept;
  LineLog& operator=(LineLog&&) = delete;

  Status append(const nlohmann::ordered_json& line);
  Status append_text(const std::string& line);  // without its line end
  bool empty() const { return size_ == 0; }

 private:
  LineLog(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::filesystem::path path_;
  int descriptor_;
  int64_t size_ = 0;  // bytes of whole lines
};

// The name of a run without a given name: the time, as in 2026-01-31-17-05-09.
std::string new_run_name();

// The folder of a new run, with its config.toml. Unless keep() is called, the destructor removes all that was put into
// it, and the folder if it was new: a start that was refused must not be in the way of the next one, nor count as the
// newest run.
class NewRunFolder {
 public:
  // `path` must be empty but for files that a run may begin with (a token table, a tokenizer). If it is "", makes a new
  // folder under data_dir()/runs, named after the time.
  static Result<NewRunFolder> create(const std::filesystem::path& path, const RunConfig& config);
  ~NewRunFolder();
  NewRunFolder(NewRunFolder&& other) noexcept;
  NewRunFolder& operator=(NewRunFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  NewRunFolder(std::filesystem::path path, std::set<std::filesystem::path> before, bool was_there)
      : path_(std::move(path)), before_(std::move(before)), was_there_(was_there) {}

  std::filesystem::path path_;
  std::set<std::filesystem::path> before_;  // what was in it
  bool was_there_;
  bool kept_ = false;
};

// The folder of a run in one process. It stays if the run ends after its first line of metrics.
class RunFolder {
 public:
  // A new folder, and the two logs.
  static Result<RunFolder> create(const std::filesystem::path& path, const RunConfig& config);
  ~RunFolder();
  RunFolder(RunFolder&&) noexcept = default;
  RunFolder& operator=(RunFolder&&) = delete;

  const std::filesystem::path& path() const { return folder_.path(); }
  LineLog& metrics() { return *metrics_; }
  LineLog& timing() { return *timing_; }

 private:
  explicit RunFolder(NewRunFolder folder) : folder_(std::move(folder)) {}

  NewRunFolder folder_;
  std::optional<LineLog> metrics_, timing_;
};

// How long the steps in this timing.jsonl took, over all starts of the run. 0 if there is none.
Duration trained_time(const std::filesystem::path& timing_file);

}  // namespace thinpipe
