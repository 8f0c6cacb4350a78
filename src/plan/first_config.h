// The first config of somebody who has text, machines and time: how large a model, how many steps. `thinpipe init` asks
// and writes what comes out. Pure: the speed of the machine is passed in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "config/run_config.h"

namespace thinpipe {

enum class Purpose {
  kExport,  // a plain LLaMA that other programs read
  kLoss,    // the lowest loss in the time given
};

struct FirstAnswers {
  std::string corpus;  // as in data.corpus
  uint64_t text_bytes = 0;
  int64_t vocab = 0;
  int64_t machines = 1;
  uint64_t line_bits_per_s = 0;  // what the slowest of them can send; 0: unlimited
  Duration time{};
  Purpose purpose = Purpose::kExport;
};

// What a machine needs for one microbatch of a config: forward and backward through one block, and through embedding
// and head.
struct StageSpeed {
  double block_s = 0;
  double ends_s = 0;
};

// One key of the config, and why it has this value.
struct ChosenKey {
  std::string section, name;
  std::string value;  // TOML
  std::string why;
};

struct FirstConfig {
  std::vector<ChosenKey> keys;
  RunConfig config;       // these keys and the defaults
  double parameters = 0;  // trained
  double step_s = 0;
  bool text_is_the_limit = false;  // more steps would only repeat the text
};

// The config whose time `speed` was measured with: one stage, so that it needs no link.
RunConfig speed_config(int64_t vocab);

// The largest model that fits the memory and that the time and the text are enough for. `speed`: measured with
// speed_config(); the other machines count as equally fast. memory_bytes: that a stage may take; 0: unknown. Throws
// UserError if no config is possible.
FirstConfig first_config(const FirstAnswers& answers, const StageSpeed& speed, uint64_t memory_bytes);

// Seconds of a step: the slowest stage and the filling of the pipeline, or the slowest line, whichever takes longer.
double step_seconds(const RunConfig& config, const StageSpeed& speed, uint64_t line_bits_per_s);

// The file, with comments. `head`: lines for its beginning.
std::string to_text(const FirstConfig& first, const std::vector<std::string>& head);

}  // namespace thinpipe
