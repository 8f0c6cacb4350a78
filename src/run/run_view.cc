#include "run/run_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/line.h"
#include "base/units.h"
#include "pipeline/step.h"

namespace thinpipe {
namespace {

// A machine whose connection broke is usually back within a second.
constexpr Duration kSettled = std::chrono::seconds(2);
constexpr Duration kNotableSilence = std::chrono::seconds(3);

ProgressPlan plan_of(const RunConfig& config, int64_t first_step) {
  const auto cuts = link_settings(config);
  return {config.train.steps, config.pipeline.stages - 1, config.model.d, first_step,
          cuts.empty() ? 0 : cuts.front().forward.rate_bits_per_s};
}

}  // namespace

RunView::RunView(const RunConfig& config, int64_t first_step, RunAudience audience, std::FILE* out, bool live,
                 const Clock& clock)
    : train_(config.train),
      stages_(config.pipeline.stages),
      audience_(std::move(audience)),
      live_(live),
      clock_(clock),
      progress_(plan_of(config, first_step), out, live, clock),
      step_(first_step) {}

void RunView::show(const control::RunStatus& status) {
  next_silence_ = {};
  if (!audience_.peer.empty()) show_seat(status);
  show_steps(status);
  show_pause(status);
  show_wait(status);
  if (status.windows() > 0) progress_.evaluation(step_, status.windows_done(), status.windows());
}

void RunView::silent(Duration time) {
  if (time < std::max(kNotableSilence, live_ ? Duration{} : next_silence_)) return;
  next_silence_ = 2 * time;
  progress_.wait(fmt::format("the coordinator has not answered for {}; still trying",
                             format_duration(std::chrono::duration_cast<std::chrono::seconds>(time))));
}

void RunView::show_steps(const control::RunStatus& status) {
  const int64_t now = std::clamp<int64_t>(status.step(), 0, train_.steps);
  const int64_t steps = now - std::exchange(step_, now);
  if (steps <= 0) return;
  progress_.step(
      {now, status.loss(), steps * tokens_per_step(train_), status.step_bytes() * static_cast<uint64_t>(steps)});
}

void RunView::show_seat(const control::RunStatus& status) {
  const auto found = std::find_if(status.members().begin(), status.members().end(),
                                  [this](const auto& one) { return one.peer() == audience_.peer; });
  if (found == status.members().end()) return;
  const int64_t stage = found->has_seat() ? found->seat().stage() : -1;
  if (std::exchange(stage_, stage) == stage) return;
  if (stage >= 0) {
    note(fmt::format("this machine holds stage {} of {}", stage, stages_));
  } else if (status.members_size() > stages_) {
    note("every stage has a machine: this one waits as a spare");
  }
}

void RunView::show_pause(const control::RunStatus& status) {
  // While the phase is "running", the step before the pause is still being computed.
  const bool paused = status.paused() && status.phase() != "running";
  if (std::exchange(paused_, paused) == paused) return;
  note(paused_ ? fmt::format("the run is paused: {} of {} steps are done; {}", step_, train_.steps, audience_.to_resume)
               : std::string("the run goes on"));
}

std::string RunView::waits_for(const control::RunStatus& status) const {
  if (status.phase() != "gathering") return "";
  const auto here =
      std::count_if(status.members().begin(), status.members().end(), [](const auto& one) { return one.connected(); });
  if (here >= stages_) return fmt::format("the run waits: {}", one_line(status.why()));
  return fmt::format("{} of {} machines are here; {}", here, stages_, audience_.to_invite);
}

// Prints the first reason at once, and a new one when it has lasted a moment.
void RunView::show_wait(const control::RunStatus& status) {
  auto waits = waits_for(status);
  if (waits != waits_) waits_since_ = clock_.now();
  waits_ = std::move(waits);
  if (waits_.empty() && (status.phase() == "running" || status.phase() == "evaluating")) {
    if (!std::exchange(said_, "").empty()) note(fmt::format("all {} machines are here", stages_));
    first_ = false;
  }
  if (waits_.empty() || waits_ == said_ || (!first_ && clock_.now() - waits_since_ < kSettled)) return;
  first_ = false;
  note(said_ = waits_);
}

}  // namespace thinpipe
