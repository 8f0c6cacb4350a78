#include "optim/moment.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "optim/kernels/bf16_rounding.h"

namespace thinpipe {
namespace {

// Elements of a step: a parameter has at most 2^40, and a run less than 2^24 steps (config/keys.cc).
constexpr int kElementBits = 40;

}  // namespace

Moment::Moment(const Parameter& parameter, const std::string& name, at::IntArrayRef shape, StateFormat format,
               uint64_t seed)
    : type_(parameter.value.scalar_type()),
      rng_(seed, fmt::format("optim.{}.{}", parameter.name, name)),
      stored_(at::zeros(shape, format == StateFormat::kBf16 ? parameter.value.options().dtype(at::kBFloat16)
                                                            : parameter.value.options())) {}

at::Tensor Moment::read(int64_t first, int64_t count) const {
  return stored_.view({-1}).narrow(0, first, count).to(type_);
}

void Moment::keep(const at::Tensor& numbers, int64_t first, int64_t step) {
  if (stored_.scalar_type() == type_) return;
  const auto place = (static_cast<uint64_t>(step) << kElementBits) + static_cast<uint64_t>(first);
  round_stochastically(numbers.view({-1}).to(at::kFloat), rng_, place,
                       stored_.view({-1}).narrow(0, first, numbers.numel()));
}

}  // namespace thinpipe
