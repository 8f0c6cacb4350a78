// The files of a run: config.toml as used, metrics.jsonl and timing.jsonl (one JSON object per line; the first is equal
// for equal runs, the second never is), the final weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

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

// Creates only the folder and its config.toml, for RunFolder and for a coordinator. `path` must not hold a run yet;
// empty: a new folder under data_dir()/runs, named after the time.
Result<std::filesystem::path> create_run_folder(const std::filesystem::path& path, const RunConfig& config);

// The folder of a run in one process. A run that ends before its first line of metrics would only be in the way of the
// next attempt, so the destructor then removes what create(), keep_corpus() and settle_table() have made, and the
// folder if it was new.
class RunFolder {
 public:
  // create_run_folder, and the two logs.
  static Result<RunFolder> create(const std::filesystem::path& path, const RunConfig& config);
  ~RunFolder();
  RunFolder(RunFolder&&) noexcept = default;
  RunFolder& operator=(RunFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  LineLog& metrics() { return *metrics_; }
  LineLog& timing() { return *timing_; }

 private:
  RunFolder() = default;

  std::filesystem::path path_;
  std::optional<LineLog> metrics_, timing_;
  std::vector<std::filesystem::path> made_;  // a folder comes before its contents
};

}  // namespace thinpipe
