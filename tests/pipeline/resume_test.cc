// A run that was stopped, saved and restored into a new pipeline equals a run that was never stopped: every loss and
// every final parameter, bit for bit. A file that does not fit is refused by name and changes nothing.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "pipeline/unit_file.h"
#include "saved_run.h"

namespace thinpipe {
namespace {

using test::kTinyVocab;
using test::ScratchFolder;
using test::tiny_config;
using test::TinyCorpus;
using test::TinyRun;

enum class Kind { kDense, kSubspace, kAnchors, kTopK, kLowRank, kFeedback, kBf16State };

RunConfig config_of(Kind kind, ScheduleKind schedule, OptimizerKind optimizer, Precision precision) {
  const bool subspace =
      kind == Kind::kSubspace || kind == Kind::kAnchors || kind == Kind::kFeedback || kind == Kind::kBf16State;
  auto config = tiny_config(subspace ? ModelMode::kSubspace : ModelMode::kDense);
  config.pipeline.stages = 3;
  config.pipeline.cuts = {1, 1, 2};
  config.pipeline.schedule = schedule;
  config.optim.kind = optimizer;
  config.train.precision = precision;
  if (kind == Kind::kBf16State) config.optim.state = StateFormat::kBf16;
  if (precision == Precision::kFloat32) config.boundary.pack = Pack::kInt4;  // stochastic rounding must continue too
  if (kind == Kind::kAnchors) {
    config.model.subspace.anchors = Anchors::kStage;
    config.model.subspace.previous = Previous::kTable;
    config.model.subspace.anchor_groups = {1, 1, 2};
  }
  if (kind == Kind::kTopK || kind == Kind::kLowRank) {
    config.boundary.kind = kind == Kind::kTopK ? BoundaryKind::kTopK : BoundaryKind::kLowRank;
    config.boundary.keep = 6;
  }
  config.boundary.error_feedback = kind == Kind::kTopK || kind == Kind::kLowRank || kind == Kind::kFeedback;
  validate(config);
  return config;
}

void expect_same(const NamedTensors& found, const NamedTensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first, expected[i].first);
    EXPECT_TRUE(at::equal(found[i].second, expected[i].second)) << found[i].first;
  }
}

class Resume : public testing::TestWithParam<std::tuple<Kind, ScheduleKind, OptimizerKind, Precision>> {};

TEST_P(Resume, ContinuesBitForBitBeforeAtAndAfterAChangeOfBasis) {
  const TinyCorpus corpus;
  const ScratchFolder folder;
  const auto [kind, schedule, optimizer, precision] = GetParam();
  const auto config = config_of(kind, schedule, optimizer, precision);
  const std::vector<int64_t> stops = {6, 7, 8};  // the basis changes at the commit of step 6 (from 0)
  std::vector<double> losses;
  NamedTensors last;
  {
    TinyRun whole(config, corpus);
    int64_t done = 0;
    for (const int64_t stop : stops) {
      for (const double loss : whole.steps(done, stop)) losses.push_back(loss);
      whole.save(folder, "at-" + std::to_string(stop) + "-");
      done = stop;
    }
    for (const double loss : whole.steps(done, 20)) losses.push_back(loss);
    last = whole.state();
  }
  for (const int64_t stop : stops) {
    SCOPED_TRACE(stop);
    TinyRun second(config, corpus);
    second.restore(folder, "at-" + std::to_string(stop) + "-", stop);
    EXPECT_EQ(second.steps(stop, 20), std::vector<double>(losses.begin() + stop, losses.end()));
    expect_same(second.state(), last);
  }
}

std::string name_of(const testing::TestParamInfo<Resume::ParamType>& info) {
  static const char* const kKinds[] = {"dense", "subspace", "anchors", "topk", "lowrank", "feedback", "bf16state"};
  const auto [kind, schedule, optimizer, precision] = info.param;
  return std::string(kKinds[static_cast<int>(kind)]) + (schedule == ScheduleKind::kGpipe ? "_gpipe_" : "_1f1b_") +
         std::string(to_string(optimizer)) + (precision == Precision::kFloat32 ? "_f32" : "_f64");
}

const auto kSchedules = testing::Values(ScheduleKind::kGpipe, ScheduleKind::k1f1b);
const auto kPrecisions = testing::Values(Precision::kFloat32, Precision::kFloat64);

INSTANTIATE_TEST_SUITE_P(Subspace, Resume,
                         testing::Combine(testing::Values(Kind::kSubspace, Kind::kAnchors), kSchedules,
                                          testing::Values(OptimizerKind::kAdamw, OptimizerKind::kRowAdamw,
                                                          OptimizerKind::kMuon),
                                          kPrecisions),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Dense, Resume,  // row_adamw needs a subspace model
                         testing::Combine(testing::Values(Kind::kDense), kSchedules,
                                          testing::Values(OptimizerKind::kAdamw, OptimizerKind::kMuon), kPrecisions),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Lossy, Resume,
                         testing::Combine(testing::Values(Kind::kTopK, Kind::kLowRank, Kind::kFeedback),
                                          testing::Values(ScheduleKind::k1f1b), testing::Values(OptimizerKind::kMuon),
                                          testing::Values(Precision::kFloat32)),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Bf16State, Resume,
                         testing::Combine(testing::Values(Kind::kBf16State), testing::Values(ScheduleKind::k1f1b),
                                          testing::Values(OptimizerKind::kAdamw, OptimizerKind::kRowAdamw,
                                                          OptimizerKind::kMuon),
                                          kPrecisions),
                         name_of);

TEST(ErrorFeedback, WhatWasLostIsForgottenWhenTheBasisMoves) {
  const TinyCorpus corpus;
  TinyRun run(config_of(Kind::kFeedback, ScheduleKind::k1f1b, OptimizerKind::kMuon, Precision::kFloat32), corpus);
  const auto kept = [&] {
    int count = 0;
    for (const auto& [name, tensor] : run.state()) count += name.find("cut.left_out") != std::string::npos ? 1 : 0;
    return count;
  };
  run.steps(0, 6);
  EXPECT_EQ(kept(), 4);  // two cuts, two directions
  run.steps(6, 7);       // the basis moves; what was lost is in the old coordinates
  EXPECT_EQ(kept(), 0);
  run.steps(7, 8);
  EXPECT_EQ(kept(), 4);
}

TEST(Restore, ReplacesTheWholeStateOfTheStage) {
  const TinyCorpus corpus;
  const ScratchFolder folder;
  const auto config = config_of(Kind::kSubspace, ScheduleKind::k1f1b, OptimizerKind::kMuon, Precision::kFloat32);
  TinyRun run(config, corpus);
  run.steps(0, 11);
  run.save(folder, "eleven-");
  auto elsewhere = config;
  elsewhere.optim.lr *= 3;
  for (const auto& [settings, steps] : {std::pair{config, 0}, {elsewhere, 8}, {elsewhere, 11}}) {
    TinyRun dirty(config, corpus);
    if (steps > 0) {
      TinyRun source(settings, corpus);  // has another basis, other moments, another C
      source.steps(0, steps);
      source.save(folder, "elsewhere-");
      dirty.restore(folder, "elsewhere-", steps);
    }
    dirty.restore(folder, "eleven-", 11);
    expect_same(dirty.state(), run.state());
    TinyRun fresh(config, corpus);
    fresh.restore(folder, "eleven-", 11);
    EXPECT_EQ(dirty.steps(11, 16), fresh.steps(11, 16));
  }
}

TEST(Restore, ContinuesFromACheckpointOfAFreshStage) {
  const TinyCorpus corpus;
  const ScratchFolder folder;
  const auto config = config_of(Kind::kSubspace, ScheduleKind::kGpipe, OptimizerKind::kAdamw, Precision::kFloat64);
  TinyRun first(config, corpus), second(config, corpus);
  first.save(folder, "zero-");
  second.restore(folder, "zero-", 0);
  EXPECT_EQ(second.steps(0, 8), first.steps(0, 8));
}

// A run of eight steps, and one that is at step three. The second's middle stage, which holds block 1 and the basis, is
// offered files of the first.
class Refusal : public testing::Test {
 protected:
  Refusal() : source_(config_, corpus_), target_(config_, corpus_) {
    source_.steps(0, 8);
    target_.steps(0, 3);
    before_ = target_.state();
  }
  std::string offer(const std::vector<UnitState>& units, int64_t step = 8) {
    std::map<std::string, SafetensorsFile> files;
    for (const auto& unit : units) {
      const auto path = folder_ / unit.unit;
      save_tensors(path, unit.tensors, unit.metadata).take();
      files.emplace(unit.unit, SafetensorsFile::open(path).take());
    }
    const auto status = target_.worker(1).restore(files, step);
    EXPECT_EQ(target_.worker(1).applied(), 3);
    EXPECT_EQ(target_.worker(1).basis_version(), 0);
    expect_same(target_.state(), before_);
    return status.ok() ? "" : status.error().message;
  }
  std::vector<UnitState> good() { return source_.worker(1).state(); }

  const RunConfig config_ = config_of(Kind::kSubspace, ScheduleKind::k1f1b, OptimizerKind::kMuon, Precision::kFloat64);
  const TinyCorpus corpus_;
  const ScratchFolder folder_;
  TinyRun source_, target_;
  NamedTensors before_;
};

TEST_F(Refusal, RefusesAnotherUnitsFileAndAMissingFile) {
  auto other = source_.worker(2).state();
  other.front().metadata["unit"] = other.front().unit = "block-001";
  EXPECT_EQ(offer({other.front(), good().back()}), "block-001: has no tensor 'param.blocks.1.attn_norm'");
  auto renamed = good();
  renamed.front().metadata["unit"] = "block-002";
  EXPECT_EQ(offer(renamed), "block-001: metadata 'unit' is \"block-002\", needs 'block-001'");
  EXPECT_EQ(offer({good().front()}), "the checkpoint has no file of unit 'shared'");
}

TEST_F(Refusal, RefusesAnotherStep) { EXPECT_EQ(offer(good(), 7), "block-001: metadata 'step' is \"8\", needs '7'"); }

TEST_F(Refusal, RefusesMissingOrNonNumericMetadata) {
  for (const char* key : {"basis_version", "dropped_share"}) {
    for (const char* text : {"", "x", "-1", "1x", "nan"}) {
      auto changed = good();
      changed.front().metadata[key] = text;
      EXPECT_EQ(offer(changed), fmt::format("block-001: metadata '{}' is \"{}\", needs a number", key, text));
    }
  }
  for (const char* key : {"format", "step", "unit"}) {
    auto missing = good();
    missing.front().metadata.erase(key);
    EXPECT_EQ(offer(missing).find(fmt::format("block-001: metadata '{}' is \"\", needs", key)), 0u) << key;
  }
}

TEST_F(Refusal, RefusesAnotherModelsShape) {
  auto config = config_;
  config.model.mlp_width = 40;
  TinyRun wider(config, corpus_);
  wider.steps(0, 8);
  const auto message = offer(wider.worker(1).state());
  EXPECT_EQ(message.find("block-001: tensor 'param.blocks.1."), 0u) << message;
  EXPECT_NE(message.find(", needs ["), std::string::npos) << message;
}

TEST_F(Refusal, RefusesAnotherPrecision) {
  auto units = good();
  auto& [name, tensor] = units.front().tensors.back();
  tensor = tensor.to(at::kFloat);
  const auto message = offer(units);
  EXPECT_EQ(message.find("block-001: tensor '" + name + "' is ["), 0u) << message;
  EXPECT_NE(message.find("of F32, needs"), std::string::npos) << message;
}

TEST_F(Refusal, RefusesNumbersThatAreNotFinite) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (size_t unit = 0; unit < good().size(); ++unit) {
      auto units = good();
      auto& [name, tensor] = units[unit].tensors.back();
      tensor = tensor.clone();
      tensor.view({-1})[-1] = bad;
      EXPECT_EQ(offer(units), fmt::format("{}: tensor '{}' has numbers that are not finite", units[unit].unit, name));
    }
  }
}

TEST_F(Refusal, RefusesABasisThatIsNotOrthonormal) {
  auto units = good();
  ASSERT_EQ(units.back().tensors.back().first, "basis.u");
  auto& basis = units.back().tensors.back().second;
  basis = basis * (1 + 1e-5);
  EXPECT_EQ(offer(units), "shared: the columns of the basis are not orthonormal");
}

TEST_F(Refusal, RefusesABasisVersionAboveTheNumberOfMoves) {
  auto units = good();
  units.front().metadata["basis_version"] = "999";
  const auto message = offer(units);
  EXPECT_EQ(message.find("block-001: basis version 999 after 8 steps, needs at most "), 0u) << message;
}

TEST_F(Refusal, RefusesATensorThatDoesNotBelongToTheUnit) {
  auto units = good();
  units.front().tensors.emplace_back("param.other", at::zeros({3}, at::kDouble));
  const auto count = units.front().tensors.size();
  EXPECT_EQ(offer(units),
            fmt::format("block-001: has {} tensors, {} of which belong to unit 'block-001'", count, count - 1));
}

// The largest file that the coordinator accepts is larger than any honest one, and not by much.
TEST_F(Refusal, LimitOfAFilesSizeIsCloseToItsSize) {
  for (const auto& unit : good()) {
    const auto path = folder_ / unit.unit;
    save_tensors(path, unit.tensors, unit.metadata).take();
    const auto bytes = static_cast<double>(std::filesystem::file_size(path));
    const auto most = static_cast<double>(most_unit_bytes(config_, kTinyVocab, unit.unit));
    EXPECT_LT(bytes, most) << unit.unit;
    // Headers, and what a unit may hold besides.
    EXPECT_LT(most, bytes + 40000 +
                        2 * 8 *
                            static_cast<double>(config_.train.microbatch * config_.train.seq_len *
                                                config_.model.boundary_width()))
        << unit.unit;
  }
}

TEST_F(Refusal, RefusesAFileWithoutOneOfTheTensors) {
  const auto all = good();
  for (size_t unit = 0; unit < all.size(); ++unit) {
    for (size_t i = 0; i < all[unit].tensors.size(); ++i) {
      auto units = all;
      units[unit].tensors.erase(units[unit].tensors.begin() + static_cast<ptrdiff_t>(i));
      EXPECT_EQ(offer(units), fmt::format("{}: has no tensor '{}'", all[unit].unit, all[unit].tensors[i].first));
    }
  }
}

}  // namespace
}  // namespace thinpipe
