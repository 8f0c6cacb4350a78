// The experiments behind `thinpipe lab NAME`. Each prints a small table and, with `json`, one JSON object on the last
// line.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace thinpipe {

// Compares the cut model with the uncut reference, and shows the error of other packs.
void lab_exactness(bool json);

struct LabDefaultOptions {
  double minutes = 3;  // of training per model, 0.05 to 10000
  std::string recipe = "llama";       // or "fast", or "both"
  std::vector<std::string> settings;  // "section.key=value", for all models
  bool same_table = false;            // a third model: dense, its embedding starting with the subspace model's table
  bool json = false;
};
// Trains the default config and its dense counterpart in this process, and prints both losses. Throws UserError.
void lab_default(const LabDefaultOptions& options);

struct SpeedrunOptions {
  int64_t seeds = 2;
  int64_t steps = 300;      // of the dense model's schedule and of the others'
  bool long_track = false;  // four times the steps
  std::string corpus = "kjv";
  std::vector<std::string> only;      // names of rows; empty: all
  std::vector<std::string> rows;      // further rows: "NAME KEY=VALUE ..."
  std::vector<std::string> settings;  // "section.key=value", for all rows
  std::string svg;                    // a file for the validation losses as curves; empty: none
  bool json = false;
};
// The steps and the time over slow links that each recipe needs to reach the loss of a dense model.
void lab_speedrun(const SpeedrunOptions& options);

// The other experiments take the same options.
struct ExperimentOptions {
  bool quick = false;  // a small version that takes seconds
  std::string svg;     // a file for the plots; empty: none
  std::string dump;    // a folder for tensors behind some figures (lab/recompute.py); empty: none
  // collapse: what lab/collapse_elsewhere.py wrote, to be shown beside it; empty: nothing
  std::string elsewhere;
  bool json = false;
};
struct ExperimentName {
  const char* name;
  const char* summary;
  bool dumps = false;  // takes `dump`
};
inline constexpr std::array kExperiments{
    ExperimentName{"collapse", "Whether training confines a dense model to few directions", true},
    ExperimentName{"depth", "How errors of lossy cuts add up with the number of cuts", true},
    ExperimentName{"drift", "What breaks if a rule of the method is broken"},
    ExperimentName{"rank", "Loss against rank and pack at equal bytes"},
    ExperimentName{"codecs", "Bytes, loss and time of the ways to shrink what crosses a cut"},
    ExperimentName{"grassmann", "Whether moving the subspace pays"},
    ExperimentName{"overhead", "What the method adds in time and memory"},
    ExperimentName{"bandwidth", "Tokens per second against the links' rate and delay"},
};
// `name` must be one of kExperiments, or "all".
void lab_experiment(const std::string& name, const ExperimentOptions& options);

struct CompareOptions {
  std::string rate = "80mbit";
  ExperimentOptions common;
};
// `thinpipe compare`. Throws UserError for a rate that is none.
void compare(const CompareOptions& options);

}  // namespace thinpipe
