// thinpipe plan: what a run asks of the machine of each stage, computed from the config alone.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "config/config_file.h"
#include "config/model_spec.h"
#include "plan/memory_plan.h"

namespace thinpipe {

void plan(const PlanArguments& arguments) {
  const auto config = arguments.config.empty() ? parse_config("", "the defaults", arguments.overrides)
                                               : load_config(arguments.config, arguments.overrides);
  const int64_t vocab = config.data.vocab;
  constexpr double kMiB = 1 << 20;
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  double all = 0;
  fmt::print("{:>5} {:>9} {:>13} {:>11} {:>16} {:>14}\n", "stage", "blocks", "parameters", "memory MiB",
             "checkpoint MiB", "MiB per step");
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
    fmt::print("{:>5} {:>9} {:>13.0f} {:>11.0f} {:>16.0f} {:>14.2f}   {}\n", stage, range, parameters,
               static_cast<double>(memory.total()) / kMiB, checkpoint / kMiB, sent / kMiB, describe(memory));
    stages.push_back({{"stage", stage},
                      {"first_block", blocks.first + 1},
                      {"last_block", blocks.last},
                      {"parameters", parameters},
                      {"memory_bytes", memory.total()},
                      {"checkpoint_bytes", checkpoint},
                      {"step_bytes", sent}});
  }
  fmt::print("{:.0f} trained parameters, {} tokens per step; memory is an upper estimate of what the process takes\n",
             all, config.train.microbatches * config.train.microbatch * config.train.seq_len);
  if (arguments.json) fmt::print("{}\n", nlohmann::ordered_json{{"parameters", all}, {"stages", stages}}.dump());
}

}  // namespace thinpipe
