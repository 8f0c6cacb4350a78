// What a run leaves behind: config.toml as used, metrics.jsonl (one JSON object a line), the final weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "config/run_config.h"

namespace thinpipe {

// A file that only grows, by whole lines. A line that does not fit on the disk is taken back, so that what is there
// always parses.
class LineLog {
 public:
  static Result<LineLog> create(const std::filesystem::path& path);
  ~LineLog();
  LineLog(LineLog&& other) noexcept;
  LineLog& operator=(LineLog&&) = delete;

  Status append(const nlohmann::ordered_json& line);

 private:
  LineLog(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::filesystem::path path_;
  int descriptor_;
  int64_t size_ = 0;  // bytes of whole lines
};

class RunFolder {
 public:
  // Makes `path` (which must not hold a run yet) and writes config.toml. An empty path: a new folder under
  // data_dir()/runs, named by the time.
  static Result<RunFolder> create(const std::filesystem::path& path, const RunConfig& config);

  const std::filesystem::path& path() const { return path_; }
  LineLog& metrics() { return metrics_; }

 private:
  RunFolder(std::filesystem::path path, LineLog metrics) : path_(std::move(path)), metrics_(std::move(metrics)) {}

  std::filesystem::path path_;
  LineLog metrics_;
};

}  // namespace thinpipe
