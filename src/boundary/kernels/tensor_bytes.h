// Converts tensors and token ids to bytes and back. Only here the boundary accesses host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "boundary/pack.h"

namespace thinpipe {

// tensor: (rows, cols) of float or double, on any device.
void pack_tensor(Pack pack, const at::Tensor& tensor, Rounding rounding, PackRandom random, std::span<std::byte> out);
Result<at::Tensor> unpack_tensor(Pack pack, std::span<const std::byte> in, int64_t rows, int64_t cols,
                                 const at::TensorOptions& options);

// Token ids on the wire (docs/wire.md): per sequence its valid length (uint32), then B x (T+1) ids of id_bytes(V), all
// little-endian; ids_bytes (boundary/sizes.h) in total.
void write_ids(const at::Tensor& tokens, int64_t vocab, std::span<std::byte> out);  // (B, T+1) int64
// (B, T+1) int64 on the CPU. An error if an id is not below V or a valid length is not T. `in` must be ids_bytes long.
Result<at::Tensor> read_ids(std::span<const std::byte> in, int64_t sequences, int64_t length, int64_t vocab);

// boundary/columns.h for tensors: (rows, keep) int64, read to the CPU.
void write_columns(const at::Tensor& columns, int64_t width, std::span<std::byte> out);
Result<at::Tensor> read_columns(std::span<const std::byte> in, int64_t rows, int64_t keep, int64_t width);

}  // namespace thinpipe
