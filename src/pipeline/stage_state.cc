// A stage's state as a checkpoint file and back: parameters, moments, basis, C and the counters (docs/checkpoints.md).
// Random numbers are functions of the step, so they need no state of their own.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <charconv>

#include "pipeline/stage_worker.h"

namespace thinpipe {
namespace {

constexpr const char* kFormat = "thinpipe-stage-1";

// A tensor of the file that must look like `like`.
Result<at::Tensor> matching(const SafetensorsFile& file, const std::string& name, const at::Tensor& like) {
  auto tensor = tensor_from(file, name);
  if (!tensor) return tensor;
  if (tensor.value().sizes() != like.sizes() || tensor.value().scalar_type() != like.scalar_type()) {
    return Error{fmt::format("tensor '{}' is {} of {}, needs {} of {}", name, c10::str(tensor.value().sizes()),
                             c10::toString(tensor.value().scalar_type()), c10::str(like.sizes()),
                             c10::toString(like.scalar_type()))};
  }
  return tensor;
}

}  // namespace

NamedTensors StageWorker::state() {
  NamedTensors tensors;
  for (const auto& parameter : stage_.parameters().all())
    tensors.emplace_back("param." + parameter.name, parameter.value);
  for (auto& [name, tensor] : optimizer_.state()) tensors.emplace_back("optim." + name, tensor);
  if (auto* side = stage_.subspace()) {
    tensors.emplace_back("basis.u", side->basis().u);
    if (side->second_moment().defined()) tensors.emplace_back("tap.c", side->second_moment());
    tensors.emplace_back("counters.dropped_share", at::full({1}, dropped_share_, at::kDouble));
  }
  return tensors;
}

SafetensorsMetadata StageWorker::state_metadata() const {
  return {{"format", kFormat},
          {"step", fmt::format("{}", applied_)},
          {"stage", fmt::format("{} of {}", place_.number, place_.count)},
          {"blocks", fmt::format("{}-{} of {}", place_.range.first, place_.range.last, place_.range.total)},
          {"basis_version", fmt::format("{}", basis_version())}};
}

Status StageWorker::restore(const SafetensorsFile& file, int64_t step) {
  auto expected = state_metadata();
  expected["step"] = fmt::format("{}", step);
  const auto& found = file.metadata();
  const auto version_text = found.contains("basis_version") ? found.at("basis_version") : "";
  int64_t version = 0;
  const auto [end, code] = std::from_chars(version_text.data(), version_text.data() + version_text.size(), version);
  if (code != std::errc() || end != version_text.data() + version_text.size() || version < 0) {
    return Error{fmt::format("metadata 'basis_version' is '{}', needs a number", version_text)};
  }
  expected["basis_version"] = version_text;
  for (const auto& [key, value] : expected) {
    const auto entry = found.find(key);
    if (entry == found.end() || entry->second != value) {
      return Error{
          fmt::format("metadata '{}' is '{}', needs '{}'", key, entry == found.end() ? "" : entry->second, value)};
    }
  }
  // All of it is read and checked before any of it is used.
  auto targets = state();
  std::erase_if(targets, [](const auto& named) { return named.first == "tap.c"; });
  NamedTensors values;
  for (const auto& [name, target] : targets) {
    auto tensor = matching(file, name, target);
    if (!tensor) return tensor.error();
    values.emplace_back(name, std::move(tensor.value()));
  }
  at::Tensor tap;
  if (file.find("tap.c") != nullptr && stage_.subspace() != nullptr) {
    auto tensor = matching(file, "tap.c", stage_.subspace()->second_moment_with_pending());
    if (!tensor) return tensor.error();
    tap = std::move(tensor.value());
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto& [name, value] = values[i];
    if (name == "basis.u") {
      stage_.subspace()->set_basis({value, version});
    } else if (name == "counters.dropped_share") {
      dropped_share_ = value.item<double>();
    } else {
      targets[i].second.copy_(value);
    }
  }
  if (auto* side = stage_.subspace()) {
    side->drop_tap();
    side->set_second_moment(tap.defined() ? tap.to(side->u().device()) : at::Tensor());
  }
  applied_ = step;
  return {};
}

}  // namespace thinpipe
