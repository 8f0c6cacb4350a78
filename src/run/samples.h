// What the model wrote while it was trained: samples.jsonl in the run's folder, one sample per line, in the order of
// the steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace thinpipe {

struct Sample {
  int64_t step = 0;  // committed steps
  std::string text;  // one line: how the model continues the first words of the validation text
};

// More are not kept: the oldest go.
constexpr size_t kMostSamples = 1000;

// Lines that thinpipe does not write are left out; none if there is no file.
std::vector<Sample> read_samples(const std::filesystem::path& run_folder);

// Adds it and removes those of the same or later steps: the run went back to a checkpoint.
Status add_sample(const std::filesystem::path& run_folder, const Sample& sample);

// "sample after step 40: In the beginning ..."
std::string sample_text(const Sample& sample);

}  // namespace thinpipe
