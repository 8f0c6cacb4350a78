#include "boundary/kernels/tensor_bytes.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "boundary/columns.h"
#include "boundary/sizes.h"

namespace thinpipe {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian, as is every machine we run on");

}  // namespace

void pack_tensor(Pack pack_kind, const at::Tensor& tensor, Rounding rounding, PackRandom random,
                 std::span<std::byte> out) {
  const auto host = tensor.cpu().contiguous();
  AT_DISPATCH_FLOATING_TYPES(host.scalar_type(), "pack_tensor", [&] {
    pack<scalar_t>(pack_kind, {host.data_ptr<scalar_t>(), static_cast<size_t>(host.numel())}, host.size(0),
                   host.size(1), rounding, random, out);
  });
}

Result<at::Tensor> unpack_tensor(Pack pack_kind, std::span<const std::byte> in, int64_t rows, int64_t cols,
                                 const at::TensorOptions& options) {
  const auto host = at::empty({rows, cols}, options.device(at::kCPU));
  Status status;
  AT_DISPATCH_FLOATING_TYPES(host.scalar_type(), "unpack_tensor", [&] {
    status =
        unpack<scalar_t>(pack_kind, in, rows, cols, {host.data_ptr<scalar_t>(), static_cast<size_t>(host.numel())});
  });
  TRY(std::move(status));
  return host.to(options.device());
}

void write_ids(const at::Tensor& tokens, int64_t vocab, std::span<std::byte> out) {
  const auto host = tokens.cpu().contiguous();
  const int64_t sequences = host.size(0);
  const auto length = static_cast<uint32_t>(host.size(1) - 1);
  auto* at = out.data();
  for (int64_t i = 0; i < sequences; ++i, at += 4) std::memcpy(at, &length, 4);
  const size_t width = id_bytes(vocab);
  const auto* ids = host.data_ptr<int64_t>();
  for (int64_t i = 0; i < host.numel(); ++i, at += width) {
    const auto id = static_cast<uint32_t>(ids[i]);
    std::memcpy(at, &id, width);
  }
}

Result<at::Tensor> read_ids(std::span<const std::byte> in, int64_t sequences, int64_t length, int64_t vocab) {
  const auto* at = in.data();
  for (int64_t i = 0; i < sequences; ++i, at += 4) {
    uint32_t valid = 0;
    std::memcpy(&valid, at, 4);
    if (valid != length)
      return Error{fmt::format("sequence {} has a valid length of {}; only {} is in use", i, valid, length)};
  }
  const auto tokens = at::empty({sequences, length + 1}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  const size_t width = id_bytes(vocab);
  auto* ids = tokens.data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens.numel(); ++i, at += width) {
    uint32_t id = 0;
    std::memcpy(&id, at, width);
    if (id >= vocab)
      return Error{fmt::format("token id {} at position {} is not below the vocabulary of {}", id, i, vocab)};
    ids[i] = id;
  }
  return tokens;
}

void write_columns(const at::Tensor& columns, int64_t width, std::span<std::byte> out) {
  const auto host = columns.cpu().contiguous();
  write_columns({host.data_ptr<int64_t>(), static_cast<size_t>(host.numel())}, width, out);
}

Result<at::Tensor> read_columns(std::span<const std::byte> in, int64_t rows, int64_t keep, int64_t width) {
  const auto columns = at::empty({rows, keep}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  TRY(read_columns(in, keep, width, {columns.data_ptr<int64_t>(), static_cast<size_t>(columns.numel())}));
  return columns;
}

}  // namespace thinpipe
