#include "run/core/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "pipeline/schedule.h"

namespace thinpipe {
namespace {

// The delay before a retry. It leaves time to notice a neighbour that is dying.
constexpr Duration kFirstRetry = std::chrono::milliseconds(100);
constexpr Duration kLongestRetry = std::chrono::seconds(5);

bool evaluation_is_due(const Steps& steps, const RunRules& rules) {
  if (steps.committed == rules.steps()) return !steps.final_loss;
  return evaluates_after(rules.config.train, steps.committed) && !steps.evaluations.contains(steps.committed);
}

int64_t skipped_in_a_row(const Steps& steps) {
  int64_t count = 0;
  while (steps.skipped.contains(steps.committed - 1 - count)) ++count;
  return count;
}

std::string timing_text(int64_t step, Duration since_start, const std::vector<control::Ready>& reports) {
  auto line = timing_line(step, seconds(since_start), reports);
  uint64_t socket_bytes = 0, dropped_packets = 0;
  for (const auto& report : reports) {
    socket_bytes += report.socket_bytes();
    dropped_packets += report.dropped_packets();
  }
  line["socket_bytes"] = socket_bytes;
  line["dropped_packets"] = dropped_packets;
  return line.dump();
}

// Who made a step's first number that is not finite.
struct NonFinite {
  size_t from;                    // the stage
  std::optional<size_t> witness;  // the stage that received the number
};

// The stage that made it does not report it. Stages that received one report from whom, so the first receiver names the
// sender.
std::optional<NonFinite> first_nonfinite(const std::vector<control::Ready>& reports) {
  for (size_t i = 1; i < reports.size(); ++i) {
    if (reports[i].nonfinite_from_previous()) return NonFinite{i - 1, i};
  }
  for (size_t i = reports.size() - 1; i-- > 0;) {
    if (reports[i].nonfinite_from_next()) return NonFinite{i + 1, i};
  }
  for (size_t i = 0; i < reports.size(); ++i) {
    if (!std::isfinite(reports[i].squared_norm()) || !std::isfinite(reports[i].loss_sum())) {
      return NonFinite{i, std::nullopt};
    }
  }
  return std::nullopt;
}

std::string why_skipped(const CommitRow& row, const std::vector<control::Ready>& reports,
                        const std::vector<std::string>& names) {
  const auto first = first_nonfinite(reports);
  if (!first) return row.why;
  const auto& name = names[first->from];
  if (!first->witness) return fmt::format("the loss or gradient of {} is not finite", name);
  return fmt::format("{} sent {} that are not finite", name, *first->witness > first->from ? "numbers" : "gradients");
}

void note_times(Steps& steps, const RunRules& rules, const std::vector<control::Ready>& reports) {
  double compute_s = 0, wait_s = 0, total_s = 0;
  for (const auto& report : reports) {
    compute_s += report.forward_s() + report.backward_s();
    wait_s += report.wait_s();
    total_s += report.total_s();
  }
  const auto stages = static_cast<double>(reports.size());
  steps.microbatch_s = compute_s / (stages * static_cast<double>(rules.config.train.microbatches));
  steps.wait_share = total_s > 0 ? wait_s / total_s : 0;
  steps.step_s = total_s / stages;
  steps.step_bytes = bytes_of(reports);
}

}  // namespace

void forget_reports(Steps& steps) {
  steps.formed.clear();
  steps.ready.clear();
  steps.evaluated.clear();
  steps.windows_done = 0;
}

void begin_epoch(Steps& steps, const Beginning& beginning, int64_t basis_version) {
  ++steps.epoch;
  forget_reports(steps);
  steps.retry_at.reset();
  if (!beginning.all_restore) return;
  steps.generation = steps.epoch;
  steps.state_revision = steps.revision;
  steps.committed = beginning.step;
  steps.basis_version = basis_version;
  steps.last_commit.reset();
  steps.final_loss.reset();
  steps.evaluations.erase(steps.evaluations.upper_bound(beginning.step), steps.evaluations.end());
  steps.skipped.erase(steps.skipped.lower_bound(beginning.step), steps.skipped.end());
}

NextMove decide_next(const Steps& steps, const Saving& saving, const Wishes& wishes, const RunRules& rules) {
  const int64_t committed = steps.committed;
  const bool over = committed == rules.steps();
  if (evaluation_is_due(steps, rules) && !wishes.stop) {
    return {Move::kEvaluate, false, fmt::format("evaluating after step {}", committed)};
  }
  // The run's end, a stop and a leaver need a checkpoint of exactly this step.
  const bool must_save = (over || wishes.stop || wishes.leave) && saving.manifest_step != committed;
  const bool save = (saving.due || must_save) && !saving.step;
  if (must_save) {
    return {Move::kWait, save, fmt::format("waiting for the checkpoint of step {}", committed)};
  }
  if (over && steps.final_loss) return {Move::kFinish, save, fmt::format("all {} steps are done", rules.steps())};
  if (wishes.stop) {
    return {Move::kFinish, save, fmt::format("stopped after step {}; the checkpoint is written", committed)};
  }
  if (wishes.leave) return {Move::kRegroup, save, "a worker leaves; its state is in the checkpoint"};
  if (wishes.regroup) return {Move::kRegroup, save, *wishes.regroup};
  if (wishes.pause) return {Move::kWait, save, fmt::format("paused after step {}", committed)};
  return {Move::kRunStep, save, fmt::format("running step {}", committed + 1)};
}

Result<CommitRow> commit_step(Steps& steps, const RunRules& rules, const std::vector<std::string>& names,
                              Duration since_start) {
  std::vector<control::Ready> reports;
  for (auto& [seat, report] : std::exchange(steps.ready, {})) reports.push_back(report);
  auto row = TRY(decide(tokens_per_step(rules.config.train), rules.config.optim.clip, reports));
  if (row.apply && !reports.front().basis_hash().empty()) ++steps.basis_version;
  row.basis_version = steps.basis_version;
  row.revision = steps.state_revision = steps.revision;
  row.metrics = metrics_line(rules.config, row, reports).dump();
  row.timing = timing_text(row.step, since_start, reports);
  note_times(steps, rules, reports);
  ++steps.committed;
  steps.failures = 0;
  if (!row.apply) {
    row.why = why_skipped(row, reports, names);
    steps.skipped.insert(row.step);
  }
  steps.last_commit = row;
  return row;
}

std::optional<std::string> too_many_skipped(const Steps& steps, const RunRules& rules) {
  const int64_t count = skipped_in_a_row(steps);
  if (count < rules.config.cluster.max_skipped) return std::nullopt;
  return fmt::format(
      "the loss or its gradient was not finite for {} steps in a row up to step {}; lower optim.lr or lengthen "
      "optim.warmup",
      count, steps.committed);
}

std::vector<size_t> behind_nonfinite(const Steps& steps) {
  std::vector<control::Ready> reports;
  for (const auto& [seat, report] : steps.ready) reports.push_back(report);
  const auto first = first_nonfinite(reports);
  if (!first) return {};
  return first->witness ? std::vector{first->from, *first->witness} : std::vector{first->from};
}

std::vector<size_t> behind_changed_payloads(const Steps& steps) {
  std::set<size_t> behind;
  const control::Ready* upper = nullptr;
  size_t stage = 0;
  for (const auto& [seat, lower] : steps.ready) {
    if (upper != nullptr && (upper->sent_to_next() != lower.received_from_previous() ||
                             upper->received_from_next() != lower.sent_to_previous())) {
      behind.insert({stage - 1, stage});
    }
    upper = &lower;
    ++stage;
  }
  return {behind.begin(), behind.end()};
}

std::optional<std::string> why_impossible(const control::Ready& report) {
  const auto wrong = [](const char* what, double number) {
    return fmt::format("reported {} of {:g}, which is impossible", what, number);
  };
  // Sums of squares and cross entropies are never negative. They may be NaN or infinite: such a step is skipped.
  const auto negative = [](double number) { return number < 0 && std::isfinite(number); };
  if (negative(report.squared_norm())) return wrong("a squared norm", report.squared_norm());
  if (negative(report.loss_sum())) return wrong("a loss", report.loss_sum());
  for (const double time : {report.forward_s(), report.backward_s(), report.wait_s(), report.total_s(),
                            report.update_s(), report.dropped_share()}) {
    if (!(time >= 0 && std::isfinite(time))) return wrong("a time or share", time);
  }
  return std::nullopt;
}

PersistEvaluation finish_evaluation(Steps& steps, const RunRules& rules) {
  const auto tokens = static_cast<double>(rules.windows_after(steps.committed) * rules.config.train.seq_len);
  const double loss = steps.evaluated.rbegin()->second / tokens;  // the last stage has it
  const bool is_final = steps.committed == rules.steps();
  steps.evaluated.clear();
  steps.evaluations.insert(steps.committed);
  steps.validation_loss = loss;
  if (is_final) steps.final_loss = loss;
  return {steps.committed, loss, is_final};
}

std::optional<std::string> count_failure(Steps& steps, const RunRules& rules, const std::string& what, TimePoint now) {
  ++steps.failures;
  const auto doublings = std::min<int64_t>(steps.failures - 1, 10);
  steps.retry_at = now + std::min<Duration>(kLongestRetry, kFirstRetry * (int64_t{1} << doublings));
  if (steps.failures < rules.config.cluster.max_failures) return std::nullopt;
  return fmt::format("step {} failed {} times in a row, last at {}", steps.committed + 1, steps.failures, what);
}

control::ToWorker run_order(const Steps& steps, const RunRules& rules, double path_hop_s) {
  control::ToWorker message;
  auto& order = *message.mutable_run_step();
  order.set_epoch(steps.epoch);
  order.set_step(steps.committed);
  const auto& config = rules.config;
  if (config.pipeline.schedule != ScheduleKind::k1f1b) return message;
  // Before the first measurement it is unknown what is worth covering.
  const bool measured = steps.microbatch_s > 0;
  const auto warmup =
      covering_warmup(config.pipeline.stages, config.train.microbatches, measured ? steps.microbatch_s : 1.0,
                      measured ? std::max(rules.hop_s, path_hop_s) : 0.0);
  for (const int64_t depth : warmup) order.add_warmup(depth);
  return message;
}

control::ToWorker evaluate_order(const Steps& steps, const RunRules& rules) {
  control::ToWorker message;
  message.mutable_evaluate()->set_epoch(steps.epoch);
  message.mutable_evaluate()->set_step(steps.committed);
  message.mutable_evaluate()->set_windows(rules.windows_after(steps.committed));
  return message;
}

control::ToWorker save_order(const Steps& steps) {
  control::ToWorker message;
  message.mutable_save()->set_step(steps.committed);
  message.mutable_save()->set_generation(steps.generation);
  return message;
}

bool missed_last_commit(const Steps& steps, const control::Holding& holding) {
  const auto& row = steps.last_commit;
  return row && holding.generation() == steps.generation && holding.applied() == steps.committed - 1 &&
         holding.ready_step() == row->step && holding.ready_epoch() == row->epoch &&
         holding.ready_revision() == row->revision;
}

control::Holding holding_of(const Steps& steps, const RunRules& rules, Seat seat) {
  control::Holding holding;
  holding.set_run(rules.run);
  holding.mutable_seat()->set_stage(seat.stage);
  holding.mutable_seat()->set_replica(seat.replica);
  holding.set_generation(steps.generation);
  holding.set_applied(steps.committed);
  holding.set_ready_step(-1);
  holding.set_revision(steps.state_revision);
  return holding;
}

bool keeps_state(const Steps& steps, const std::optional<control::Holding>& holding, Seat seat) {
  return holding && holding->seat().stage() == seat.stage && holding->generation() == steps.generation &&
         holding->applied() == steps.committed && holding->revision() == steps.state_revision;
}

}  // namespace thinpipe
