#include "pipeline/basis_message.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "tensor/fill.h"

namespace thinpipe {
namespace {

// A basis further from orthonormal than this was not made by grassmann_step.
constexpr double kOrthonormalTolerance = 1e-9;

}  // namespace

size_t basis_message_bytes(int64_t d, int64_t k) {
  return sizeof(int64_t) + static_cast<size_t>(d * k) * sizeof(double);
}

std::vector<std::byte> encode_basis(const Basis& basis) {
  const auto u = basis.u.contiguous();
  const auto bytes = tensor_bytes_of(u);
  std::vector<std::byte> message(sizeof(basis.version) + bytes.size());
  std::memcpy(message.data(), &basis.version, sizeof(basis.version));
  std::memcpy(message.data() + sizeof(basis.version), bytes.data(), bytes.size());
  return message;
}

Result<Basis> decode_basis(std::span<const std::byte> message, const Basis& current) {
  const auto count = static_cast<size_t>(current.d() * current.k());
  const size_t wanted = basis_message_bytes(current.d(), current.k());
  if (message.size() != wanted) {
    return Error{fmt::format("a basis message has {} bytes and must have {} for d = {}, k = {}", message.size(), wanted,
                             current.d(), current.k())};
  }
  int64_t version = 0;
  std::memcpy(&version, message.data(), sizeof(version));
  if (version != current.version + 1) {
    return Error{fmt::format("basis version {} arrived where {} was due", version, current.version + 1)};
  }
  std::vector<double> values(count);
  std::memcpy(values.data(), message.data() + sizeof(version), count * sizeof(double));
  const auto u = doubles_tensor(values).view({current.d(), current.k()});
  const double error = (u.t().mm(u) - at::eye(current.k(), u.options())).abs().max().item<double>();
  if (!(error < kOrthonormalTolerance))
    return Error{fmt::format("basis version {} is not orthonormal (off by {})", version, error)};
  return Basis{u, version};
}

}  // namespace thinpipe
