// What crosses a cut, both ways. Forward: the microbatch's token ids and its stream; backward: the stream's gradient. A
// boundary turns them into the bytes of one message and back; it neither sends nor keeps anything. Every size follows
// from the run's config, and decoding refuses any other (docs/wire.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "boundary/pack.h"
#include "config/run_config.h"
#include "model/stage.h"

namespace thinpipe {

// Which message this is: stochastic rounding draws by it.
struct MessageNumber {
  uint64_t step;
  uint64_t microbatch;
};

struct ForwardContent {
  TokenBatch batch;
  at::Tensor stream;  // (BT, width)
};

// One per cut, on either side of it. Thread-safe: it has no state.
class Boundary {
 public:
  virtual ~Boundary() = default;

  virtual std::vector<std::byte> encode_forward(const ForwardContent& content, MessageNumber number) const = 0;
  // sequences: B of this microbatch; the ids are checked against the vocabulary.
  virtual Result<ForwardContent> decode_forward(std::span<const std::byte> message, int64_t sequences) const = 0;
  virtual std::vector<std::byte> encode_backward(const at::Tensor& grad, MessageNumber number) const = 0;
  virtual Result<at::Tensor> decode_backward(std::span<const std::byte> message, int64_t sequences) const = 0;

  virtual size_t forward_bytes(int64_t sequences) const = 0;
  virtual size_t backward_bytes(int64_t sequences) const = 0;
};

// Cut number `cut` (from 0) of the config's model: coordinates (k wide) in a subspace model, x (d wide) in a dense one,
// in the config's pack. Tensors are decoded with `options`.
std::unique_ptr<Boundary> make_boundary(const RunConfig& config, int64_t vocab, int64_t cut,
                                        const at::TensorOptions& options);

// Throws UserError when the width of what would be sent does not fit the pack.
void check_pack(const RunConfig& config);

}  // namespace thinpipe
