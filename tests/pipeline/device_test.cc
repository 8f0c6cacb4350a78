// Whole runs on a device that is not the CPU: the losses are those of the CPU with its fused kernels, the state stays
// on the device, and a checkpoint goes from one device to the other.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "saved_run.h"
#include "support/foreign_device.h"

namespace thinpipe {
namespace {

using test::kForeignDevice;
using test::largest_relative_difference;
using test::ScratchFolder;
using test::tiny_config;
using test::TinyCorpus;
using test::TinyRun;

struct RunCase {
  std::string name;
  RunConfig config;
};

// Every optimiser, trained anchors and error feedback, across a change of basis at the end of step 1.
std::vector<RunCase> run_cases() {
  std::vector<RunCase> all;
  const auto add = [&](const std::string& name, ModelMode mode, OptimizerKind kind) -> RunConfig& {
    auto config = tiny_config(mode);
    config.optim.kind = kind;
    config.model.subspace.update_every = 2;
    config.pipeline.stages = 3;
    config.train.steps = 4;
    all.push_back({name, config});
    return all.back().config;
  };
  add("dense, adamw", ModelMode::kDense, OptimizerKind::kAdamw);
  add("dense, muon", ModelMode::kDense, OptimizerKind::kMuon);
  add("subspace, row adamw", ModelMode::kSubspace, OptimizerKind::kRowAdamw);
  auto& anchors = add("subspace, muon, trained anchors", ModelMode::kSubspace, OptimizerKind::kMuon);
  anchors.model.subspace.anchors = Anchors::kStage;
  anchors.model.subspace.previous = Previous::kTable;
  anchors.model.subspace.anchor_groups = {1, 1, 2};
  anchors.pipeline.cuts = {1, 1, 2};
  auto& top = add("dense, topk with error feedback", ModelMode::kDense, OptimizerKind::kAdamw);
  top.boundary.kind = BoundaryKind::kTopK;
  top.boundary.keep = 6;
  top.boundary.error_feedback = true;
  auto& recomputed = add("subspace, recomputed", ModelMode::kSubspace, OptimizerKind::kAdamw);
  recomputed.train.recompute = Recompute::kBlock;
  return all;
}

RunConfig on(const std::string& device, RunConfig config) {
  config.train.device = device;
  return config;
}

TEST(DeviceRun, HasTheLossesOfTheCpuAndKeepsItsStateOnTheDevice) {
  const TinyCorpus corpus;
  for (const auto& [name, config] : run_cases()) {
    SCOPED_TRACE(name);
    TinyRun cpu(config, corpus), foreign(on(kForeignDevice, config), corpus);
    auto wanted = cpu.steps(0, config.train.steps), found = foreign.steps(0, config.train.steps);
    wanted.push_back(cpu.validate());
    found.push_back(foreign.validate());
    EXPECT_LT(largest_relative_difference(found, wanted), 1e-9);  // float64; Muon's iterations enlarge its errors
    for (const auto& [tensor_name, tensor] : foreign.state()) {
      const bool basis = tensor_name.ends_with("/basis.u");  // every stage computes with it in float64 on its CPU
      EXPECT_EQ(test::is_foreign(tensor), !basis) << tensor_name;
    }
  }
}

TEST(DeviceRun, ContinuesACheckpointOfAnotherDevice) {
  const TinyCorpus corpus;
  for (const auto& [name, config] : run_cases()) {
    SCOPED_TRACE(name);
    const ScratchFolder folder;
    TinyRun whole(config, corpus);
    whole.steps(0, 1);
    whole.save(folder, "cpu-");
    const auto rest = whole.steps(1, config.train.steps);

    TinyRun foreign(on(kForeignDevice, config), corpus);
    foreign.restore(folder, "cpu-", 1);
    auto there = foreign.steps(1, 3);
    foreign.save(folder, "foreign-");
    TinyRun back(config, corpus);
    back.restore(folder, "foreign-", 3);
    for (const double loss : back.steps(3, config.train.steps)) there.push_back(loss);
    EXPECT_LT(largest_relative_difference(there, rest), 1e-9);
  }
}

}  // namespace
}  // namespace thinpipe
