// The folder of a run that never was.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <string>

#include "support/scratch.h"

namespace thinpipe::test {

inline std::string metrics_line(int64_t step, double loss) {
  return fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":{},"lr":0.01,"tokens":{},"bytes":[{{"forward":1000,"backward":600}}]}})",
      step, loss, 2 * loss, step * 100);
}

inline std::string timing_line(int64_t step, double seconds, bool traced = false) {
  const auto passes = traced ? R"(,"passes":[["f",0,0.01,0.05],["b",0,0.1,0.2]])" : "";
  return fmt::format(R"({{"step":{},"seconds":{},"stages":[{{"total_s":0.4,"forward_s":0.1,"backward_s":0.2,)"
                     R"("update_s":0.05,"wait_s":0.1{}}},{{"total_s":0.4,"forward_s":0.1,"backward_s":0.2,)"
                     R"("update_s":0.05,"wait_s":0.06{}}}]}})",
                     step, seconds, passes, passes);
}

class MadeUpRun {
 public:
  MadeUpRun() {
    write("config.toml",
          "[model]\nd = 64\nblocks = 2\nheads = 2\n[pipeline]\nstages = 2\n[train]\nsteps = 1000\nseq_len = 25\n"
          "microbatch = 2\nmicrobatches = 2\n[data]\nvocab = 512\n[subspace]\nrank = 8\n");
  }
  std::filesystem::path folder() const { return scratch_.path(); }

  void write(const std::string& name, const std::string& text) const { std::ofstream(folder() / name) << text; }
  void append(const std::string& name, const std::string& text) const {
    std::ofstream(folder() / name, std::ios::app) << text;
  }
  // Steps of half a second with falling losses.
  void add_steps(int64_t from, int64_t to) const {
    std::string metrics, timing;
    for (int64_t step = from; step <= to; ++step) {
      metrics += metrics_line(step, loss(step)) + "\n";
      timing += timing_line(step, 0.5 * static_cast<double>(step), step % 10 == 1) + "\n";
    }
    append("metrics.jsonl", metrics);
    append("timing.jsonl", timing);
  }
  static double loss(int64_t step) { return 8 / (1 + 0.01 * static_cast<double>(step)); }

 private:
  ScratchFolder scratch_;
};

}  // namespace thinpipe::test
