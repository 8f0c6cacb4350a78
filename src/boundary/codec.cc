#include "boundary/codec.h"

#include <ATen/ATen.h>

#include <tuple>

#include "base/rng.h"
#include "boundary/kernels/tensor_bytes.h"
#include "boundary/sizes.h"
#include "model/fill.h"

namespace thinpipe {
namespace {

// The stream as it is, packed row by row.
class WholeCodec final : public Codec {
 public:
  WholeCodec(Pack pack, int64_t width, const at::TensorOptions& options)
      : pack_(pack), width_(width), options_(options) {}

  void encode(const at::Tensor& stream, Rounding rounding, PackRandom random, std::span<std::byte> out) const override {
    pack_tensor(pack_, stream, rounding, random, out);
  }

  Result<at::Tensor> decode(std::span<const std::byte> in, int64_t rows) const override {
    return unpack_tensor(pack_, in, rows, width_, options_);
  }

 private:
  const Pack pack_;
  const int64_t width_;
  const at::TensorOptions options_;
};

// Of each row the `keep` numbers of largest magnitude: their columns, ascending, then the numbers, packed. The receiver
// takes all others as 0.
class TopKCodec final : public Codec {
 public:
  TopKCodec(Pack pack, int64_t keep, int64_t width, const at::TensorOptions& options)
      : pack_(pack), keep_(keep), width_(width), options_(options) {}

  void encode(const at::Tensor& stream, Rounding rounding, PackRandom random, std::span<std::byte> out) const override {
    const auto largest = std::get<1>(stream.abs().topk(keep_, /*dim=*/1));
    const auto columns = std::get<0>(largest.sort(/*dim=*/1));  // (rows, keep)
    const auto columns_size = columns_bytes(stream.size(0));
    write_columns(columns, width_, out.first(columns_size));
    pack_tensor(pack_, stream.gather(1, columns), rounding, random, out.subspan(columns_size));
  }

  Result<at::Tensor> decode(std::span<const std::byte> in, int64_t rows) const override {
    const auto columns_size = columns_bytes(rows);
    const auto columns = TRY(read_columns(in.first(columns_size), rows, keep_, width_));
    const auto numbers = TRY(unpack_tensor(pack_, in.subspan(columns_size), rows, keep_, options_));
    return at::zeros({rows, width_}, options_).scatter_(1, columns.to(options_.device()), numbers);
  }

 private:
  size_t columns_bytes(int64_t rows) const { return static_cast<size_t>(rows * keep_) * id_bytes(width_); }

  const Pack pack_;
  const int64_t keep_, width_;
  const at::TensorOptions options_;
};

// P Q^T with P (rows, keep) and Q (width, keep), by power iteration from random columns, as PowerSGD does; packed as
// one matrix, P above Q.
class LowRankCodec final : public Codec {
 public:
  LowRankCodec(Pack pack, int64_t keep, int64_t width, const at::TensorOptions& options)
      : pack_(pack), keep_(keep), width_(width), options_(options) {}

  void encode(const at::Tensor& stream, Rounding rounding, PackRandom random, std::span<std::byte> out) const override {
    constexpr int kIterations = 2;
    // The pack's own random numbers come from the same stream with another seed.
    auto q = fill_random(CounterRng(random.seed ^ stream_of("low rank"), random.stream), {width_, keep_}, 1.0,
                         stream.options());
    at::Tensor p;
    for (int i = 0; i < kIterations; ++i) {
      p = std::get<0>(at::linalg_qr(stream.mm(q)));  // (rows, keep), orthonormal columns
      q = stream.t().mm(p);
    }
    pack_tensor(pack_, at::cat({p, q}), rounding, random, out);
  }

  Result<at::Tensor> decode(std::span<const std::byte> in, int64_t rows) const override {
    const auto both = TRY(unpack_tensor(pack_, in, rows + width_, keep_, options_));
    return both.narrow(0, 0, rows).mm(both.narrow(0, rows, width_).t());
  }

 private:
  const Pack pack_;
  const int64_t keep_, width_;
  const at::TensorOptions options_;
};

}  // namespace

std::unique_ptr<Codec> make_codec(const RunConfig& config, const at::TensorOptions& options) {
  const auto& boundary = config.boundary;
  const int64_t width = config.model.boundary_width();
  switch (boundary.kind) {
    case BoundaryKind::kStream:
      return std::make_unique<WholeCodec>(boundary.pack, width, options);
    case BoundaryKind::kTopK:
      return std::make_unique<TopKCodec>(boundary.pack, boundary.keep, width, options);
    case BoundaryKind::kLowRank:
      return std::make_unique<LowRankCodec>(boundary.pack, boundary.keep, width, options);
  }
  TP_CHECK(false, "unknown boundary kind {}", static_cast<int>(boundary.kind));
}

}  // namespace thinpipe
