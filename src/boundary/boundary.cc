#include "boundary/boundary.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "boundary/codec.h"
#include "boundary/kernels/tensor_bytes.h"
#include "boundary/sizes.h"
#include "model/fill.h"

namespace thinpipe {
namespace {

// Sends the stream as boundary.kind says: x, d wide, in a dense model.
class StreamBoundary : public Boundary {
 public:
  explicit StreamBoundary(const Cut& cut)
      : config_(cut.config),
        vocab_(cut.vocab),
        number_(static_cast<uint64_t>(cut.number)),
        options_(cut.options),
        codec_(make_codec(cut.config, cut.options)) {}

  std::vector<std::byte> encode(const Activation& activation, MessageNumber number) override {
    const int64_t sequences = activation.batch.sequences();
    std::vector<std::byte> message(boundary_sizes(config_, vocab_, sequences).forward);
    const auto ids = std::span(message).first(ids_bytes(sequences, config_.train.seq_len, vocab_));
    write_ids(activation.batch.tokens, vocab_, ids);
    encode_stream(activation.stream, Rounding::kNearest, Direction::kForward, number,
                  std::span(message).subspan(ids.size()));
    return message;
  }

  Result<Activation> decode(std::span<const std::byte> message, int64_t sequences) override {
    const size_t wanted = boundary_sizes(config_, vocab_, sequences).forward;
    if (message.size() != wanted) return wrong_size("forward", message.size(), wanted);
    const int64_t length = config_.train.seq_len;
    const size_t ids_size = ids_bytes(sequences, length, vocab_);
    const auto tokens = TRY(read_ids(message.first(ids_size), sequences, length, vocab_));
    const auto stream = TRY(codec_->decode(message.subspan(ids_size), sequences * length));
    return Activation{{tokens.to(options_.device())}, stream};
  }

  std::vector<std::byte> encode_gradient(const at::Tensor& grad, MessageNumber number) override {
    std::vector<std::byte> message(stream_bytes(config_, grad.size(0)));
    encode_stream(grad, Rounding::kStochastic, Direction::kBackward, number, message);
    return message;
  }

  Result<at::Tensor> decode_gradient(std::span<const std::byte> message, int64_t sequences) override {
    const size_t wanted = boundary_sizes(config_, vocab_, sequences).backward;
    if (message.size() != wanted) return wrong_size("backward", message.size(), wanted);
    return codec_->decode(message, sequences * config_.train.seq_len);
  }

  void commit(bool apply) override {
    if (apply) left_out_ = now_left_out_;
  }
  at::Tensor left_out() const override { return left_out_; }
  void set_left_out(at::Tensor left_out) override { left_out_ = std::move(left_out); }

 protected:
  Error wrong_size(const char* what, size_t got, size_t wanted) const {
    return Error{fmt::format("a {} message has {} bytes and must have {}", what, got, wanted)};
  }

  const RunConfig config_;
  const int64_t vocab_;

 private:
  // With error feedback, the message carries the stream and what the message before it lost (Optimus-CC calls this lazy
  // error propagation). A step that is run again starts from the last commit.
  void encode_stream(const at::Tensor& stream, Rounding rounding, Direction direction, MessageNumber number,
                     std::span<std::byte> out) {
    const PackRandom random{config_.train.seed, pack_stream(number.step, number.microbatch, number_, direction)};
    if (!config_.boundary.error_feedback || number.evaluation) return codec_->encode(stream, rounding, random, out);
    if (number.microbatch == 0) now_left_out_ = left_out_;
    const auto wanted = now_left_out_.defined() ? stream + now_left_out_ : stream;
    codec_->encode(wanted, rounding, random, out);
    now_left_out_ = wanted - codec_->decode(out, wanted.size(0)).take();
  }

  const uint64_t number_;
  const at::TensorOptions options_;
  const std::unique_ptr<Codec> codec_;
  at::Tensor left_out_, now_left_out_;  // as of the last commit; after the last message
};

// Sends coordinates, k wide. At the end of a step that updates the subspace, the next basis goes upstream: its version
// and U in float64 (METHOD 3).
class SubspaceBoundary final : public StreamBoundary {
 public:
  explicit SubspaceBoundary(const Cut& cut) : StreamBoundary(cut), side_(*cut.side) {}

  bool has_end_of_step(Direction direction, int64_t step) const override {
    return direction == Direction::kBackward && side_.moves_at(step);
  }

  std::vector<std::byte> end_of_step(Direction /*direction*/) override {
    const auto& next = *side_.next_basis();
    const auto u = next.u.contiguous();
    const auto bytes = tensor_bytes_of(u);
    std::vector<std::byte> message(sizeof(next.version) + bytes.size());
    std::memcpy(message.data(), &next.version, sizeof(next.version));
    std::memcpy(message.data() + sizeof(next.version), bytes.data(), bytes.size());
    return message;
  }

  // The basis must be the successor of this stage's basis, with orthonormal columns.
  Status take_end_of_step(Direction /*direction*/, std::span<const std::byte> message) override {
    // grassmann_step never makes a basis further from orthonormal than this.
    constexpr double kOrthonormalTolerance = 1e-9;
    const auto& current = side_.basis();
    const size_t wanted = boundary_sizes(config_, vocab_).end_of_step;
    if (message.size() != wanted) return wrong_size("basis", message.size(), wanted);
    int64_t version = 0;
    std::memcpy(&version, message.data(), sizeof(version));
    if (version != current.version + 1)
      return Error{fmt::format("basis version {} arrived, expected {}", version, current.version + 1)};
    std::vector<double> values(static_cast<size_t>(current.d() * current.k()));
    std::memcpy(values.data(), message.data() + sizeof(version), values.size() * sizeof(double));
    const auto u = doubles_tensor(values).view({current.d(), current.k()});
    const double error = (u.t().mm(u) - at::eye(current.k(), u.options())).abs().max().item<double>();
    if (!(error < kOrthonormalTolerance))
      return Error{fmt::format("basis version {} is not orthonormal (off by {})", version, error)};
    side_.set_next_basis({u, version});
    return {};
  }

 private:
  SubspaceSide& side_;
};

}  // namespace

std::unique_ptr<Boundary> make_boundary(const Cut& cut) {
  if (cut.config.model.is_subspace()) return std::make_unique<SubspaceBoundary>(cut);
  return std::make_unique<StreamBoundary>(cut);
}

void check_boundary(const RunConfig& config) {
  if (auto problem = boundary_problem(config); !problem.empty()) throw UserError(problem);
}

}  // namespace thinpipe
