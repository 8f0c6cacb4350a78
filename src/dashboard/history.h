// What a run has done so far, from metrics.jsonl and timing.jsonl in its folder: columns of numbers, one per step, that
// follow the files as they grow. A million steps take about 60 MB, and any part of them is thinned in a few
// milliseconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace thinpipe {

// Reads a file of lines that another process appends to or replaces.
class LineReader {
 public:
  explicit LineReader(std::filesystem::path path) : path_(std::move(path)) {}

  struct News {
    bool replaced = false;  // the file is another one, or shorter: forget all earlier lines
    std::vector<std::string> lines;
  };
  // The whole lines since the last call, about 1 MB of them at most. A missing file has none.
  News read();

 private:
  const std::filesystem::path path_;
  uint64_t inode_ = 0;
  uint64_t offset_ = 0;
  size_t at_once_ = 1 << 20;  // bytes to read at once
};

class RunHistory {
 public:
  // tokens_per_step, and the number of cuts, turn bytes and seconds into rates.
  RunHistory(const std::filesystem::path& folder, int64_t tokens_per_step, int64_t cuts);

  // Reads what was appended since. Returns whether there may be more at once.
  bool follow();

  int64_t last_step() const { return first_ + static_cast<int64_t>(loss_.size()) - 1; }  // 0: none
  double last_loss() const { return loss_.empty() ? kNone : loss_.back(); }
  // The newest validation loss; NaN if there is none.
  double validation_loss() const { return validation_.empty() ? kNone : validation_.rbegin()->second; }
  // Of the last steps; NaN if there are none.
  double tokens_per_s() const;
  double bytes_per_token() const { return bytes_per_token_.empty() ? kNone : bytes_per_token_.back(); }
  // The last line of timing.jsonl; null if there is none.
  const nlohmann::json& last_timing() const { return last_timing_; }
  // The last line of timing.jsonl that has passes; null if there is none.
  const nlohmann::json& last_traced() const { return last_traced_; }
  // The bytes of the last step, per cut: [{"forward": ..., "backward": ...}].
  const nlohmann::json& last_bytes() const { return last_bytes_; }

  // The answer to /api/v1/steps (docs/api.md).
  nlohmann::json thinned(int64_t from, int64_t to, int64_t points) const;

 private:
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  struct BasisMove {
    double energy_inside = kNone, largest_angle = kNone, dropped_share = kNone;
  };

  void take_metrics(const nlohmann::json& line);
  void take_timing(nlohmann::json line);

  const double tokens_per_step_;
  const double cuts_;
  LineReader metrics_file_, timing_file_;
  // One number per step, from the first step in the file on.
  int64_t first_ = 1;
  std::vector<float> loss_, grad_norm_, lr_, bytes_per_token_;
  int64_t first_timed_ = 1;
  std::vector<float> seconds_;     // from the previous step's end to this one's
  std::vector<float> wait_share_;  // mean over the stages
  double ended_ = kNone;           // when the last step ended, by the coordinator's clock
  std::map<int64_t, double> validation_;
  std::map<int64_t, BasisMove> basis_;
  nlohmann::json last_timing_, last_traced_, last_bytes_;
};

}  // namespace thinpipe
