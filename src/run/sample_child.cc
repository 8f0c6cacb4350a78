#include "run/sample_child.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "run/samples.h"

namespace thinpipe {

bool sample_is_due(int64_t every, int64_t last, int64_t step) {
  return every > 0 && step > last && step / every > std::max<int64_t>(0, last) / every;
}

SampleChild::SampleChild(std::filesystem::path program, std::filesystem::path run_folder, const TrainConfig& train)
    : program_(std::move(program)), folder_(std::move(run_folder)), every_(train.sample_every), steps_(train.steps) {
  if (const auto samples = read_samples(folder_); !samples.empty()) seen_ = samples.back().step;
}

std::optional<std::string> SampleChild::tend(int64_t checkpoint_step) {
  if (auto text = news()) return text;
  const bool due = sample_is_due(every_, seen_, checkpoint_step);
  seen_ = std::max(seen_, checkpoint_step);
  // Those who trained a complete run get a sample at its end.
  if (!due || process_ || checkpoint_step >= steps_) return std::nullopt;
  if (!make_directories(folder_ / "logs")) return std::nullopt;
  auto started =
      ChildProcess::start(program_, {"sample", folder_.string(), "--step", fmt::format("{}", checkpoint_step)},
                          folder_ / "logs" / "sample.log");
  if (!started) return std::nullopt;
  process_ = std::move(started).take();
  step_ = checkpoint_step;
  return std::nullopt;
}

std::optional<std::string> SampleChild::news() {
  const auto end = process_ ? process_->poll() : std::nullopt;
  if (!end) return std::nullopt;
  process_.reset();
  const auto samples = read_samples(folder_);
  // A newer checkpoint may have replaced the one that it was to take.
  if (end->exit_code == 0 && !samples.empty() && samples.back().step >= step_) {
    seen_ = std::max(seen_, samples.back().step);
    return sample_text(samples.back());
  }
  if (std::exchange(complained_, true)) return std::nullopt;
  const auto why = end->signal == 0 ? last_words(folder_ / "logs" / "sample.log") : "its process was ended";
  return fmt::format("no sample after step {}: {}", step_, why);
}

}  // namespace thinpipe
