// thinpipe plan: what a run asks of the machine of each stage, computed from the config alone.
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "base/say.h"
#include "commands.h"
#include "config/config_file.h"
#include "config/model_spec.h"
#include "model/threads.h"
#include "pipeline/stage_worker.h"
#include "plan/measured_stage.h"
#include "plan/memory_plan.h"

namespace thinpipe {
namespace {

constexpr double kMiB = 1 << 20;

int64_t stage_to_measure(const std::string& text, int64_t stages) {
  int64_t stage = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), stage);
  if (code == std::errc() && end == text.data() + text.size() && 0 <= stage && stage < stages) return stage;
  throw UserError(fmt::format("--measure {}: needs the number of a stage, from 0 to {}", text, stages - 1));
}

// Prints what the stage took beside what was planned for it. Links and the copy of a checkpoint are not measured.
nlohmann::ordered_json measure(const RunConfig& config, int64_t stage) {
  use_threads(threads_for(config));
  const auto plan = memory_plan(config, config.data.vocab, stage);
  const auto measured = measure_stage(config, config.data.vocab, stage);
  const auto planned = static_cast<double>(measured_part(plan) + plan.base), peak = static_cast<double>(measured.peak);
  say("stage {} measured: {:.0f} MiB at its peak, {:.0f} MiB before the step; planned {:.0f} MiB without links and "
      "checkpoints, {:.2f} of what was measured; the step took {:.1f} s\n",
      stage, peak / kMiB, static_cast<double>(measured.built) / kMiB, planned / kMiB, planned / peak, measured.step_s);
  return {{"stage", stage}, {"peak_bytes", measured.peak}, {"planned_bytes", planned}, {"step_s", measured.step_s}};
}

}  // namespace

void plan(const PlanArguments& arguments) {
  const auto config = arguments.config.empty() ? parse_config("", "the defaults", arguments.overrides)
                                               : load_config(arguments.config, arguments.overrides);
  const int64_t vocab = config.data.vocab;
  const bool measures = !arguments.measure.empty();
  const int64_t measured = measures ? stage_to_measure(arguments.measure, config.pipeline.stages) : 0;
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  double all = 0;
  say("{:>5} {:>9} {:>13} {:>11} {:>16} {:>14}\n", "stage", "blocks", "parameters", "memory MiB", "checkpoint MiB",
      "MiB per step");
  for (int64_t stage = 0; stage < config.pipeline.stages; ++stage) {
    const auto blocks = blocks_of_stage(config, stage);
    double parameters = 0;
    for (const auto& spec : model_spec(config.model, vocab, blocks)) parameters += static_cast<double>(spec.elements());
    all += parameters;
    const auto memory = memory_plan(config, vocab, stage);
    const auto traffic = step_traffic(config, vocab, stage);
    const auto checkpoint = static_cast<double>(state_bytes(config, vocab, blocks));
    const double sent = static_cast<double>(traffic.sent + traffic.received);
    const auto range = fmt::format("{}-{}", blocks.first + 1, blocks.last);
    say("{:>5} {:>9} {:>13.0f} {:>11.0f} {:>16.0f} {:>14.2f}   {}\n", stage, range, parameters,
        static_cast<double>(memory.total()) / kMiB, checkpoint / kMiB, sent / kMiB, describe(memory));
    stages.push_back({{"stage", stage},
                      {"first_block", blocks.first + 1},
                      {"last_block", blocks.last},
                      {"parameters", parameters},
                      {"memory_bytes", memory.total()},
                      {"checkpoint_bytes", checkpoint},
                      {"step_bytes", sent}});
  }
  say("{:.0f} trained parameters, {} tokens per step; memory is an upper estimate of what the process takes\n", all,
      config.train.microbatches * config.train.microbatch * config.train.seq_len);
  if (config.checkpoint.mode == CheckpointMode::kAuto) {
    say("checkpoint.mode = \"auto\": where twice as much is free, a stage takes its checkpoint's size more for a copy; "
        "\"sync\" never does\n");
  }
  nlohmann::ordered_json json{{"parameters", all}, {"stages", stages}};
  if (measures) json["measured"] = measure(config, measured);
  if (arguments.json) fmt::print("{}\n", json.dump());
}

}  // namespace thinpipe
