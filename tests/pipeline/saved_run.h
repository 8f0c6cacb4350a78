// A tiny run that can be stopped, saved and taken up again: what the tests of resuming share.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "pipeline/stage_worker.h"
#include "pipeline/tensor_file.h"
#include "tiny_run.h"

namespace thinpipe::test {

// A pipeline with its tokens.
class TinyRun {
 public:
  TinyRun(const RunConfig& config, const TinyCorpus& corpus, const at::Tensor& table = {})
      : config_(config), batches_(corpus.prepared(), config.train), pipeline_(config, kTinyVocab, batches_, table) {}

  std::vector<double> steps(int64_t from, int64_t to) {
    std::vector<double> losses;
    for (int64_t step = from; step < to; ++step) losses.push_back(pipeline_.step(step).loss);
    return losses;
  }
  StepResult step(int64_t number) { return pipeline_.step(number); }
  double validate() { return pipeline_.validate(batches_.validation_windows()); }
  StageWorker& worker(size_t stage) { return pipeline_.worker(stage); }
  size_t stages() const { return static_cast<size_t>(config_.pipeline.stages); }

  // A file per unit of the model, whatever the stages.
  void save(const ScratchFolder& folder, const std::string& prefix) {
    for (size_t i = 0; i < stages(); ++i) {
      for (const auto& unit : worker(i).state()) {
        save_tensors(folder / (prefix + unit.unit), unit.tensors, unit.metadata).take();
      }
    }
  }
  void restore(const ScratchFolder& folder, const std::string& prefix, int64_t step) {
    for (size_t i = 0; i < stages(); ++i) {
      std::map<std::string, SafetensorsFile> files;
      for (const auto& unit : worker(i).state()) {
        files.emplace(unit.unit, SafetensorsFile::open(folder / (prefix + unit.unit)).take());
      }
      worker(i).restore(files, step).take();
    }
  }
  // A copy of everything all stages hold.
  NamedTensors state() {
    NamedTensors all;
    for (size_t i = 0; i < stages(); ++i) {
      for (const auto& unit : worker(i).state()) {
        for (const auto& [name, tensor] : unit.tensors) {
          all.emplace_back(fmt::format("{}/{}/{}", i, unit.unit, name), tensor.clone());
        }
      }
    }
    return all;
  }

 private:
  RunConfig config_;
  CorpusBatches batches_;
  InProcessPipeline pipeline_;
};

}  // namespace thinpipe::test
