#include "boundary/boundary.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "boundary/kernels/tensor_bytes.h"

namespace thinpipe {
namespace {

// With spare capacity, so that whoever sends it can put a trailer behind it without moving it (net/packet.h).
std::vector<std::byte> message_of(size_t bytes) {
  constexpr size_t kTrailerRoom = 128;
  std::vector<std::byte> message;
  message.reserve(bytes + kTrailerRoom);
  message.resize(bytes);
  return message;
}

// Both kinds of boundary so far send the stream as it is, packed row by row; they differ in its width alone.
class PackedBoundary final : public Boundary {
 public:
  PackedBoundary(const RunConfig& config, int64_t vocab, int64_t width, int64_t cut, const at::TensorOptions& options)
      : pack_(config.boundary.pack),
        seed_(config.train.seed),
        length_(config.train.seq_len),
        vocab_(vocab),
        width_(width),
        cut_(static_cast<uint64_t>(cut)),
        options_(options) {}

  size_t forward_bytes(int64_t sequences) const override {
    return ids_bytes(sequences, length_, vocab_) + packed_bytes(pack_, sequences * length_, width_);
  }
  size_t backward_bytes(int64_t sequences) const override { return packed_bytes(pack_, sequences * length_, width_); }

  std::vector<std::byte> encode_forward(const ForwardContent& content, MessageNumber number) const override {
    const int64_t sequences = content.batch.sequences();
    auto message = message_of(forward_bytes(sequences));
    const auto ids = std::span(message).first(ids_bytes(sequences, length_, vocab_));
    write_ids(content.batch.tokens, vocab_, ids);
    pack_tensor(pack_, content.stream, Rounding::kNearest, random(number, Direction::kForward),
                std::span(message).subspan(ids.size()));
    return message;
  }

  Result<ForwardContent> decode_forward(std::span<const std::byte> message, int64_t sequences) const override {
    if (message.size() != forward_bytes(sequences))
      return wrong_size("forward", message.size(), forward_bytes(sequences));
    const size_t ids_size = ids_bytes(sequences, length_, vocab_);
    auto tokens = read_ids(message.first(ids_size), sequences, length_, vocab_);
    if (!tokens) return tokens.error();
    auto stream = unpack_tensor(pack_, message.subspan(ids_size), sequences * length_, width_, options_);
    if (!stream) return stream.error();
    return ForwardContent{{tokens.value().to(options_.device())}, stream.value()};
  }

  std::vector<std::byte> encode_backward(const at::Tensor& grad, MessageNumber number) const override {
    auto message = message_of(packed_bytes(pack_, grad.size(0), width_));
    pack_tensor(pack_, grad, Rounding::kStochastic, random(number, Direction::kBackward), message);
    return message;
  }

  Result<at::Tensor> decode_backward(std::span<const std::byte> message, int64_t sequences) const override {
    if (message.size() != backward_bytes(sequences))
      return wrong_size("backward", message.size(), backward_bytes(sequences));
    return unpack_tensor(pack_, message, sequences * length_, width_, options_);
  }

 private:
  PackRandom random(MessageNumber number, Direction direction) const {
    return {seed_, pack_stream(number.step, number.microbatch, cut_, direction)};
  }
  Error wrong_size(const char* direction, size_t got, size_t wanted) const {
    return Error{fmt::format("boundary {}: a {} message has {} bytes and must have {}", cut_, direction, got, wanted)};
  }

  Pack pack_;
  uint64_t seed_;
  int64_t length_;  // T
  int64_t vocab_;
  int64_t width_;  // k or d
  uint64_t cut_;
  at::TensorOptions options_;
};

}  // namespace

std::unique_ptr<Boundary> make_boundary(const RunConfig& config, int64_t vocab, int64_t cut,
                                        const at::TensorOptions& options) {
  return std::make_unique<PackedBoundary>(config, vocab, config.model.boundary_width(), cut, options);
}

void check_pack(const RunConfig& config) {
  const bool subspace = config.model.is_subspace();
  const int64_t width = config.model.boundary_width();
  const auto problem = pack_problem(config.boundary.pack, width);
  if (problem.empty() || config.pipeline.stages == 1) return;
  throw UserError(fmt::format("boundary.pack = \"{}\" with {} = {}: {}", to_string(config.boundary.pack),
                              subspace ? "subspace.rank" : "model.d", width, problem));
}

}  // namespace thinpipe
