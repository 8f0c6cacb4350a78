// The words the TOML file uses for each enum of RunConfig. Reading, writing and the documentation share these lists; a
// value that is missing here cannot be chosen.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "config/run_config.h"

namespace thinpipe {

template <class E>
struct EnumNames;

template <>
struct EnumNames<Positions> {
  static constexpr std::array<std::pair<Positions, std::string_view>, 3> kAll{{
      {Positions::kRope, "rope"},
      {Positions::kSinusoidal, "sinusoidal"},
      {Positions::kLearned, "learned"},
  }};
};

template <>
struct EnumNames<Precision> {
  static constexpr std::array<std::pair<Precision, std::string_view>, 3> kAll{{
      {Precision::kFloat64, "float64"},
      {Precision::kFloat32, "float32"},
      {Precision::kBf16, "bf16"},
  }};
};

template <>
struct EnumNames<CheckpointMode> {
  static constexpr std::array<std::pair<CheckpointMode, std::string_view>, 3> kAll{{
      {CheckpointMode::kAuto, "auto"},
      {CheckpointMode::kAsync, "async"},
      {CheckpointMode::kSync, "sync"},
  }};
};

template <>
struct EnumNames<OptimizerKind> {
  static constexpr std::array<std::pair<OptimizerKind, std::string_view>, 3> kAll{{
      {OptimizerKind::kAdamw, "adamw"},
      {OptimizerKind::kRowAdamw, "row_adamw"},
      {OptimizerKind::kMuon, "muon"},
  }};
};

template <>
struct EnumNames<LrSchedule> {
  static constexpr std::array<std::pair<LrSchedule, std::string_view>, 4> kAll{{
      {LrSchedule::kConstant, "constant"},
      {LrSchedule::kCosine, "cosine"},
      {LrSchedule::kLinear, "linear"},
      {LrSchedule::kWsd, "wsd"},
  }};
};

template <>
struct EnumNames<ModelMode> {
  static constexpr std::array<std::pair<ModelMode, std::string_view>, 2> kAll{{
      {ModelMode::kDense, "dense"},
      {ModelMode::kSubspace, "subspace"},
  }};
};

template <>
struct EnumNames<PostNorm> {
  static constexpr std::array<std::pair<PostNorm, std::string_view>, 2> kAll{{
      {PostNorm::kNone, "none"},
      {PostNorm::kGain, "gain"},
  }};
};

template <>
struct EnumNames<Anchors> {
  static constexpr std::array<std::pair<Anchors, std::string_view>, 2> kAll{{
      {Anchors::kFixed, "fixed"},
      {Anchors::kStage, "stage"},
  }};
};

template <>
struct EnumNames<NormForm> {
  static constexpr std::array<std::pair<NormForm, std::string_view>, 2> kAll{{
      {NormForm::kJoint, "joint"},
      {NormForm::kSplit, "split"},
  }};
};

template <>
struct EnumNames<InputForm> {
  static constexpr std::array<std::pair<InputForm, std::string_view>, 3> kAll{{
      {InputForm::kAuto, "auto"},
      {InputForm::kTable, "table"},
      {InputForm::kDirect, "direct"},
  }};
};

template <>
struct EnumNames<ScheduleKind> {
  static constexpr std::array<std::pair<ScheduleKind, std::string_view>, 2> kAll{{
      {ScheduleKind::kGpipe, "gpipe"},
      {ScheduleKind::k1f1b, "1f1b"},
  }};
};

template <>
struct EnumNames<BoundaryKind> {
  static constexpr std::array<std::pair<BoundaryKind, std::string_view>, 2> kAll{{
      {BoundaryKind::kSubspace, "subspace"},
      {BoundaryKind::kDense, "dense"},
  }};
};

template <>
struct EnumNames<Pack> {
  static constexpr std::array<std::pair<Pack, std::string_view>, 7> kAll{{
      {Pack::kFp64, "fp64"},
      {Pack::kFp32, "fp32"},
      {Pack::kBf16, "bf16"},
      {Pack::kFp16, "fp16"},
      {Pack::kInt8, "int8"},
      {Pack::kInt4, "int4"},
      {Pack::kInt2, "int2"},
  }};
};

template <class E>
constexpr std::string_view enum_name(E value) {
  for (const auto& [known, name] : EnumNames<E>::kAll) {
    if (known == value) return name;
  }
  return "";
}

// The value of that name into *value; false, and *value untouched, when there is none.
template <class E>
constexpr bool enum_from_name(std::string_view name, E* value) {
  for (const auto& [known, known_name] : EnumNames<E>::kAll) {
    if (known_name != name) continue;
    *value = known;
    return true;
  }
  return false;
}

}  // namespace thinpipe
