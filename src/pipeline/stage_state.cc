// A stage's state as the files of a checkpoint, one per unit of the model, and back: parameters, moments, basis, C and
// counters (docs/checkpoints.md). Random numbers are functions of the step and need no state.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "pipeline/stage_worker.h"
#include "pipeline/unit_file.h"

namespace thinpipe {
namespace {

// Reads a tensor that must have the shape and type of `like`.
Result<at::Tensor> matching(const SafetensorsFile& file, const std::string& name, const at::Tensor& like) {
  TRY(check_tensor(file, name, like));
  return tensor_from(file, name);
}

Result<double> dropped_share_in(const SafetensorsFile& file) {
  const auto found = file.metadata().find("dropped_share");
  const std::string text = found == file.metadata().end() ? "" : found->second;
  double share = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (code == std::errc() && end == text.data() + text.size() && 0 <= share && share <= 1) return share;
  return Error{fmt::format("metadata 'dropped_share' is {}, needs a number", quoted_for_error(text))};
}

}  // namespace

std::vector<UnitState> StageWorker::state() {
  std::vector<UnitState> units;
  for (const auto& unit : model_units(config_.model, place_.range)) {
    units.push_back({unit,
                     {},
                     {{"format", kUnitFormat},
                      {"unit", unit},
                      {"step", fmt::format("{}", applied_)},
                      {"basis_version", fmt::format("{}", basis_version())},
                      // Of the whole stage: the maximum over all stages is reported, however the units are divided.
                      {"dropped_share", fmt::format("{}", dropped_share_)}}});
  }
  const auto of_unit = [&](const std::string& name) -> NamedTensors& {
    return std::find_if(units.begin(), units.end(), [&](const auto& one) { return one.unit == name; })->tensors;
  };
  for (auto& parameter : stage_.parameters().all()) {
    of_unit(parameter.unit).emplace_back("param." + parameter.name, parameter.value);
  }
  for (const auto& [parameter, name, tensor] : optimizer_.state()) {
    of_unit(parameter->unit).emplace_back(fmt::format("optim.{}.{}", parameter->name, name), tensor);
  }
  if (auto* side = stage_.subspace()) {
    of_unit(kSharedUnit).emplace_back(kBasis, side->basis().u);
    if (side->second_moment().defined()) of_unit("head").emplace_back(kTap, side->second_moment());
  }
  for (const auto& [boundary, name, unit] : sending_sides()) {
    if (boundary->left_out().defined()) of_unit(unit).emplace_back(name, boundary->left_out());
  }
  return units;
}

std::vector<StageWorker::SendingSide> StageWorker::sending_sides() {
  std::vector<SendingSide> sides;
  if (before_) sides.push_back({before_.get(), kLostBackward, block_unit(place_.range.first)});
  if (after_) sides.push_back({after_.get(), kLostForward, block_unit(place_.range.last - 1)});
  return sides;
}

Status StageWorker::restore(const std::map<std::string, SafetensorsFile>& files, int64_t step) {
  // Everything is checked before anything is used. Then the tensors are copied straight out of the mapped files: a
  // stage may be half of what a machine can hold, so it is never in memory twice.
  at::Tensor basis, tap;
  std::map<Boundary*, at::Tensor> left_out;
  int64_t version = 0;
  double dropped_share = 0;
  auto* side = stage_.subspace();
  const auto read_unit = [&](const UnitState& unit, const SafetensorsFile& file) -> Status {
    TRY(check_unit_file(config_, vocab_, unit.unit, step, file));
    const auto its_version = TRY(basis_version_of(file));
    const auto its_share = TRY(dropped_share_in(file));
    if (unit.unit == kSharedUnit) version = its_version;
    dropped_share = std::max(dropped_share, its_share);
    for (const auto& [name, target] : unit.tensors) {
      if (name == kTap || name == kLostForward || name == kLostBackward) continue;
      if (name == kBasis) {
        basis = TRY(matching(file, name, target));
      } else {
        TRY(check_tensor(file, name, target));
      }
    }
    if (unit.unit == "head" && side != nullptr && file.find(kTap) != nullptr) {
      tap = TRY(matching(file, kTap, side->second_moment_or_zeros()));
    }
    const auto like = at::empty({config_.train.microbatch * config_.train.seq_len, config_.model.boundary_width()},
                                stage_.options().device(at::kMeta));
    for (const auto& sending : sending_sides()) {
      if (sending.unit != unit.unit || file.find(sending.name) == nullptr) continue;
      left_out[sending.boundary] = TRY(matching(file, sending.name, like)).to(stage_.options().device());
    }
    return {};
  };
  const auto units = state();
  for (const auto& unit : units) {
    const auto file = files.find(unit.unit);
    if (file == files.end()) return Error{fmt::format("the checkpoint has no file of unit '{}'", unit.unit)};
    if (const auto status = read_unit(unit, file->second); !status) {
      return Error{fmt::format("{}: {}", unit.unit, status.error().message)};
    }
  }
  for (const auto& unit : units) {
    for (const auto& [name, target] : unit.tensors) {
      if (name.starts_with("param.") || name.starts_with("optim.")) copy_tensor(files.at(unit.unit), name, target);
    }
  }
  if (side != nullptr) {
    side->set_basis({basis, version});
    side->drop_tap();
    side->set_second_moment(tap.defined() ? tap.to(side->u().device()) : at::Tensor());
  }
  for (const auto& sending : sending_sides()) sending.boundary->set_left_out(left_out[sending.boundary]);
  dropped_share_ = dropped_share;
  applied_ = step;
  return {};
}

}  // namespace thinpipe
