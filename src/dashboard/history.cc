#include "dashboard/history.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

namespace thinpipe {
namespace {

constexpr size_t kBytesAtOnce = 1 << 20;
constexpr size_t kRecentSteps = 20;  // for rates that are shown as the present ones

double number_in(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

int64_t step_in(const nlohmann::json& line) {
  const auto found = line.find("step");
  return found != line.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
}

// Sums of the finite numbers of an interval.
struct Interval {
  double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low;
  int64_t count = 0;

  void add(double number) {
    if (!std::isfinite(number)) return;
    sum += number;
    low = std::min(low, number);
    high = std::max(high, number);
    ++count;
  }
  nlohmann::json mean() const { return or_null(sum / static_cast<double>(count)); }
  nlohmann::json least() const { return or_null(low); }
  nlohmann::json most() const { return or_null(high); }
  nlohmann::json or_null(double number) const { return count > 0 ? nlohmann::json(number) : nlohmann::json(); }
};

}  // namespace

LineReader::News LineReader::read() {
  News news;
  struct stat facts {};
  if (::stat(path_.c_str(), &facts) != 0) return news;
  if (facts.st_ino != inode_ || static_cast<uint64_t>(facts.st_size) < offset_) {
    news.replaced = inode_ != 0;
    inode_ = facts.st_ino;
    offset_ = 0;
  }
  const uint64_t unread = static_cast<uint64_t>(facts.st_size) - offset_;
  if (unread == 0) return news;
  std::string text(std::min<uint64_t>(unread, at_once_), '\0');
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset_));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  size_t begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    news.lines.push_back(text.substr(begin, end - begin));
  }
  offset_ += begin;
  at_once_ = begin == 0 && text.size() == at_once_ ? 2 * at_once_ : kBytesAtOnce;  // a line may be longer
  return news;
}

RunHistory::RunHistory(const std::filesystem::path& folder, int64_t tokens_per_step, int64_t cuts)
    : tokens_per_step_(static_cast<double>(tokens_per_step)),
      cuts_(static_cast<double>(cuts)),
      metrics_file_(folder / "metrics.jsonl"),
      timing_file_(folder / "timing.jsonl") {}

bool RunHistory::follow() {
  const auto metrics = metrics_file_.read();
  if (metrics.replaced) {
    loss_.clear(), grad_norm_.clear(), lr_.clear(), bytes_per_token_.clear();
    validation_.clear(), basis_.clear();
    last_bytes_ = nullptr;
  }
  for (const auto& line : metrics.lines) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) take_metrics(json);
  }
  const auto timing = timing_file_.read();
  if (timing.replaced) {
    seconds_.clear(), wait_share_.clear();
    ended_ = kNone;
    last_timing_ = last_traced_ = nullptr;
  }
  for (const auto& line : timing.lines) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) take_timing(std::move(json));
  }
  return !metrics.lines.empty() || !timing.lines.empty();
}

void RunHistory::take_metrics(const nlohmann::json& line) {
  const int64_t step = step_in(line);
  if (const auto found = line.find("final_validation_loss"); found != line.end()) {
    validation_[step] = number_in(line, "final_validation_loss");
    return;
  }
  if (loss_.empty()) first_ = step;
  if (step < 1 || step != last_step() + 1) return;  // not ours
  loss_.push_back(static_cast<float>(number_in(line, "loss")));
  grad_norm_.push_back(static_cast<float>(number_in(line, "grad_norm")));
  lr_.push_back(static_cast<float>(number_in(line, "lr")));
  double bytes = 0;
  if (const auto found = line.find("bytes"); found != line.end() && found->is_array()) {
    for (const auto& cut : *found) bytes += number_in(cut, "forward") + number_in(cut, "backward");
    last_bytes_ = *found;
  }
  bytes_per_token_.push_back(static_cast<float>(cuts_ > 0 ? bytes / cuts_ / tokens_per_step_ : 0));
  if (line.contains("validation_loss")) validation_[step] = number_in(line, "validation_loss");
  if (const auto found = line.find("basis"); found != line.end() && found->is_object()) {
    auto& move = basis_[step];
    move.energy_inside = number_in(*found, "energy_inside");
    if (const auto angles = found->find("angles_rad"); angles != found->end() && angles->is_array()) {
      move.largest_angle = 0;
      for (const auto& angle : *angles) {
        if (angle.is_number()) move.largest_angle = std::max(move.largest_angle, angle.get<double>());
      }
    }
  }
  // Known one step after the move.
  if (line.contains("dropped_share") && !basis_.empty())
    basis_.rbegin()->second.dropped_share = number_in(line, "dropped_share");
}

void RunHistory::take_timing(nlohmann::json line) {
  const int64_t step = step_in(line);
  if (seconds_.empty()) first_timed_ = step;
  if (step < 1 || step != first_timed_ + static_cast<int64_t>(seconds_.size())) return;
  const double now = number_in(line, "seconds");
  // A coordinator counts from its own start, so a restarted one begins again.
  seconds_.push_back(static_cast<float>(now >= ended_ ? now - ended_ : kNone));
  ended_ = now;
  double waited = 0, total = 0;
  if (const auto stages = line.find("stages"); stages != line.end() && stages->is_array()) {
    for (const auto& stage : *stages) {
      waited += number_in(stage, "wait_s");
      total += number_in(stage, "total_s");
    }
    if (!stages->empty() && stages->front().contains("passes")) last_traced_ = line;
  }
  wait_share_.push_back(static_cast<float>(total > 0 ? waited / total : kNone));
  last_timing_ = std::move(line);
}

double RunHistory::tokens_per_s() const {
  double sum = 0;
  int64_t count = 0;
  for (size_t i = seconds_.size() - std::min(seconds_.size(), kRecentSteps); i < seconds_.size(); ++i) {
    if (!std::isfinite(seconds_[i])) continue;
    sum += seconds_[i];
    ++count;
  }
  return sum > 0 ? static_cast<double>(count) * tokens_per_step_ / sum : kNone;
}

nlohmann::json RunHistory::thinned(int64_t from, int64_t to, int64_t points) const {
  from = std::max(from, first_);
  to = std::min(to, last_step());
  const int64_t count = std::max<int64_t>(0, to - from + 1);
  const int64_t every = std::max<int64_t>(1, (count + points - 1) / points);
  nlohmann::json answer = {{"from", from}, {"to", to}, {"every", every}};
  for (const auto* name :
       {"step", "loss", "loss_min", "loss_max", "grad_norm", "lr", "tokens_per_s", "bytes_per_token", "wait_share"})
    answer[name] = nlohmann::json::array();
  for (int64_t begin = from; begin <= to; begin += every) {
    const int64_t end = std::min(begin + every - 1, to);
    Interval loss, grad_norm, lr, step_s, bytes, waited;
    for (int64_t step = begin; step <= end; ++step) {
      const auto row = static_cast<size_t>(step - first_);
      loss.add(loss_[row]);
      grad_norm.add(grad_norm_[row]);
      lr.add(lr_[row]);
      bytes.add(bytes_per_token_[row]);
      const int64_t timed = step - first_timed_;
      if (timed < 0 || timed >= static_cast<int64_t>(seconds_.size())) continue;
      step_s.add(seconds_[static_cast<size_t>(timed)]);
      waited.add(wait_share_[static_cast<size_t>(timed)]);
    }
    answer["step"].push_back(end);
    answer["loss"].push_back(loss.mean());
    answer["loss_min"].push_back(loss.least());
    answer["loss_max"].push_back(loss.most());
    answer["grad_norm"].push_back(grad_norm.mean());
    answer["lr"].push_back(lr.mean());
    answer["bytes_per_token"].push_back(bytes.mean());
    answer["wait_share"].push_back(waited.mean());
    answer["tokens_per_s"].push_back(
        step_s.sum > 0 ? nlohmann::json(static_cast<double>(step_s.count) * tokens_per_step_ / step_s.sum)
                       : nlohmann::json());
  }
  // Validations and moves are rare; of a million, every so manieth is enough.
  const auto rare = [&](const auto& rows, const auto& take) {
    const auto first = rows.lower_bound(from), last = rows.upper_bound(to);
    const auto stride = std::max<int64_t>(1, std::distance(first, last) / points);
    int64_t number = 0;
    for (auto row = first; row != last; ++row, ++number) {
      if (number % stride == 0 || std::next(row) == last) take(row->first, row->second);
    }
  };
  auto& validation = answer["validation"] = {{"step", nlohmann::json::array()}, {"loss", nlohmann::json::array()}};
  rare(validation_, [&](int64_t step, double value) {
    validation["step"].push_back(step);
    validation["loss"].push_back(value);
  });
  auto& basis = answer["basis"] = {{"step", nlohmann::json::array()},
                                   {"energy_inside", nlohmann::json::array()},
                                   {"largest_angle", nlohmann::json::array()},
                                   {"dropped_share", nlohmann::json::array()}};
  rare(basis_, [&](int64_t step, const BasisMove& move) {
    basis["step"].push_back(step);
    basis["energy_inside"].push_back(move.energy_inside);
    basis["largest_angle"].push_back(move.largest_angle);
    basis["dropped_share"].push_back(move.dropped_share);
  });
  return answer;
}

}  // namespace thinpipe
