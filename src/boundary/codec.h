// How a stream or its gradient, (rows, width), becomes bytes and is rebuilt: whole, as the largest numbers of each row,
// or as a product of two thin matrices (boundary.kind). docs/wire.md specifies the bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "boundary/pack.h"
#include "config/run_config.h"

namespace thinpipe {

// Has no state. The size of an encoding is stream_bytes() (boundary/sizes.h).
class Codec {
 public:
  virtual ~Codec() = default;

  // out: stream_bytes(config, rows) bytes
  virtual void encode(const at::Tensor& stream, Rounding rounding, PackRandom random,
                      std::span<std::byte> out) const = 0;
  // in: stream_bytes(config, rows) bytes from a peer, possibly hostile. Returns (rows, width).
  virtual Result<at::Tensor> decode(std::span<const std::byte> in, int64_t rows) const = 0;
};

// options: of the tensors that are decoded
std::unique_ptr<Codec> make_codec(const RunConfig& config, const at::TensorOptions& options);

}  // namespace thinpipe
