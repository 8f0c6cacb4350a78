#include "pipeline/unit_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "config/model_spec.h"
#include "optim/rules.h"

namespace thinpipe {
namespace {

constexpr double kMostDeviation = 1e-6;  // of U^T U from I; a step of the subspace ends with a QR in float64

template <class T>
bool all_finite(std::span<const std::byte> bytes) {
  // Numbers in a file need not be aligned.
  for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    T number;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    if (!std::isfinite(number)) return false;
  }
  return true;
}

// A bf16 is finite if its exponent is not all ones.
bool all_finite_bf16(std::span<const std::byte> bytes) {
  constexpr uint16_t kExponent = 0x7f80;
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint16_t)) {
    uint16_t number = 0;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    if ((number & kExponent) == kExponent) return false;
  }
  return true;
}

bool all_finite(const SafetensorsTensor& tensor) {
  if (tensor.dtype == Dtype::kBf16) return all_finite_bf16(tensor.bytes);
  return tensor.dtype == Dtype::kF64 ? all_finite<double>(tensor.bytes) : all_finite<float>(tensor.bytes);
}

// The largest element of |U^T U - I|, for U (d, k) in float64.
double deviation(const SafetensorsTensor& u) {
  const auto d = static_cast<size_t>(u.shape[0]), k = static_cast<size_t>(u.shape[1]);
  std::vector<double> numbers(d * k), gram(k * k, 0.0);
  std::memcpy(numbers.data(), u.bytes.data(), u.bytes.size());
  for (size_t row = 0; row < d; ++row) {
    const double* const values = numbers.data() + row * k;
    for (size_t i = 0; i < k; ++i) {
      for (size_t j = 0; j < k; ++j) gram[i * k + j] += values[i] * values[j];
    }
  }
  double largest = 0;
  for (size_t i = 0; i < k; ++i) {
    for (size_t j = 0; j < k; ++j) largest = std::max(largest, std::abs(gram[i * k + j] - (i == j ? 1.0 : 0.0)));
  }
  return largest;
}

std::string metadata_of(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "" : found->second;
}

Status check_metadata(const SafetensorsFile& file, const std::string& key, const std::string& needed) {
  const auto text = metadata_of(file, key);
  if (text == needed) return {};
  return Error{fmt::format("metadata '{}' is {}, needs '{}'", key, quoted_for_error(text), needed)};
}

}  // namespace

std::vector<UnitTensor> unit_tensors(const RunConfig& config, int64_t vocab, const std::string& unit) {
  const auto& model = config.model;
  const Dtype number = config.train.precision == Precision::kFloat64 ? Dtype::kF64 : Dtype::kF32;
  const Dtype moment = config.optim.state == StateFormat::kBf16 ? Dtype::kBf16 : number;
  std::vector<UnitTensor> tensors;
  for (const auto& spec : model_spec(model, vocab, whole_model(model))) {
    if (spec.unit != unit) continue;
    tensors.push_back({"param." + spec.name, number, spec.shape});
    for (const auto& [name, shape] : rule_for(config.optim.kind, spec).state(spec)) {
      tensors.push_back({fmt::format("optim.{}.{}", spec.name, name), moment, shape});
    }
  }
  if (model.is_subspace() && unit == kSharedUnit) {
    tensors.push_back({kBasis, Dtype::kF64, {model.d, model.subspace.rank}});
  }
  if (model.is_subspace() && unit == "head") tensors.push_back({kTap, number, {model.d, model.d}, /*optional=*/true});
  if (unit.starts_with("block-") && !tensors.empty()) {
    const int64_t rows = config.train.microbatch * config.train.seq_len;
    for (const char* name : {kLostForward, kLostBackward}) {
      tensors.push_back({name, number, {rows, model.boundary_width()}, /*optional=*/true});
    }
  }
  return tensors;
}

uint64_t most_unit_bytes(const RunConfig& config, int64_t vocab, const std::string& unit) {
  constexpr uint64_t kHeaderBytes = 1 << 14, kHeaderBytesPerTensor = 1 << 9;
  uint64_t most = kHeaderBytes;
  for (const auto& tensor : unit_tensors(config, vocab, unit)) {
    most += kHeaderBytesPerTensor + static_cast<uint64_t>(tensor_bytes(tensor.dtype, tensor.shape).value_or(0));
  }
  return most;
}

Status check_unit_file(const RunConfig& config, int64_t vocab, const std::string& unit, int64_t step,
                       const SafetensorsFile& file) {
  TRY(check_metadata(file, "format", kUnitFormat));
  TRY(check_metadata(file, "unit", unit));
  TRY(check_metadata(file, "step", fmt::format("{}", step)));
  const int64_t version = TRY(basis_version_of(file));
  const int64_t every = config.model.is_subspace() ? config.model.subspace.update_every : 0;
  const int64_t most = every > 0 ? step / every + 1 : 0;
  if (version > most)
    return Error{fmt::format("basis version {} after {} steps, needs at most {}", version, step, most)};
  size_t found = 0;
  for (const auto& needed : unit_tensors(config, vocab, unit)) {
    const auto* const tensor = file.find(needed.name);
    if (tensor == nullptr && needed.optional) continue;
    if (tensor == nullptr) return Error{fmt::format("has no tensor '{}'", needed.name)};
    ++found;
    if (tensor->dtype != needed.dtype || tensor->shape != needed.shape) {
      return Error{fmt::format("tensor '{}' is {} of {}, needs {} of {}", needed.name, tensor->shape,
                               dtype_name(tensor->dtype), needed.shape, dtype_name(needed.dtype))};
    }
    if (!all_finite(*tensor)) return Error{fmt::format("tensor '{}' has numbers that are not finite", needed.name)};
    if (needed.name == kBasis && !(deviation(*tensor) <= kMostDeviation)) {
      return Error{"the columns of the basis are not orthonormal"};
    }
    file.forget(*tensor);
  }
  if (found == file.tensors().size()) return {};
  return Error{fmt::format("has {} tensors, {} of which belong to unit '{}'", file.tensors().size(), found, unit)};
}

Result<int64_t> basis_version_of(const SafetensorsFile& file) {
  const auto text = metadata_of(file, "basis_version");
  int64_t version = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (code == std::errc() && end == text.data() + text.size() && version >= 0) return version;
  return Error{fmt::format("metadata 'basis_version' is {}, needs a number", quoted_for_error(text))};
}

}  // namespace thinpipe
