#include "pipeline/replicas.h"

namespace thinpipe {
namespace {

class Alone final : public Replicas {
 public:
  Status sum(uint64_t /*epoch*/, int64_t /*step*/, std::span<at::Tensor> /*gradients*/) override { return {}; }
};

}  // namespace

std::unique_ptr<Replicas> alone() { return std::make_unique<Alone>(); }

}  // namespace thinpipe
