#include "model/group.h"

#include <ATen/ATen.h>

namespace thinpipe {
namespace {

class GroupOfOne final : public TensorGroup {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  void all_reduce_(at::Tensor&) override {}
};

}  // namespace

at::Tensor TensorGroup::own_start(const at::Tensor& tensor) const {
  return rank() == 0 ? tensor : at::zeros_like(tensor);
}

TensorGroup& group_of_one() {
  static GroupOfOne one;
  return one;
}

}  // namespace thinpipe
