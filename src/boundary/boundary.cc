#include "boundary/boundary.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "boundary/kernels/tensor_bytes.h"
#include "boundary/sizes.h"
#include "model/fill.h"

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

// Sends the stream as it is, packed row by row: x, d wide, in a dense model.
class PackedBoundary : public Boundary {
 public:
  explicit PackedBoundary(const Cut& cut)
      : config_(cut.config), vocab_(cut.vocab), number_(static_cast<uint64_t>(cut.number)), options_(cut.options) {}

  std::vector<std::byte> encode(const Activation& activation, MessageNumber number) override {
    const int64_t sequences = activation.batch.sequences();
    auto message = message_of(boundary_sizes(config_, vocab_, sequences).forward);
    const auto ids = std::span(message).first(ids_bytes(sequences, config_.train.seq_len, vocab_));
    write_ids(activation.batch.tokens, vocab_, ids);
    pack_tensor(pack(), activation.stream, Rounding::kNearest, random(number, Direction::kForward),
                std::span(message).subspan(ids.size()));
    return message;
  }

  Result<Activation> decode(std::span<const std::byte> message, int64_t sequences) override {
    const size_t wanted = boundary_sizes(config_, vocab_, sequences).forward;
    if (message.size() != wanted) return wrong_size("forward", message.size(), wanted);
    const int64_t length = config_.train.seq_len;
    const size_t ids_size = ids_bytes(sequences, length, vocab_);
    const auto tokens = TRY(read_ids(message.first(ids_size), sequences, length, vocab_));
    const auto stream = TRY(unpack_tensor(pack(), message.subspan(ids_size), sequences * length, width(), options_));
    return Activation{{tokens.to(options_.device())}, stream};
  }

  std::vector<std::byte> encode_gradient(const at::Tensor& grad, MessageNumber number) override {
    auto message = message_of(packed_bytes(pack(), grad.size(0), width()));
    pack_tensor(pack(), grad, Rounding::kStochastic, random(number, Direction::kBackward), message);
    return message;
  }

  Result<at::Tensor> decode_gradient(std::span<const std::byte> message, int64_t sequences) override {
    const size_t wanted = boundary_sizes(config_, vocab_, sequences).backward;
    if (message.size() != wanted) return wrong_size("backward", message.size(), wanted);
    return unpack_tensor(pack(), message, sequences * config_.train.seq_len, width(), options_);
  }

 protected:
  Error wrong_size(const char* what, size_t got, size_t wanted) const {
    return Error{fmt::format("boundary {}: a {} message has {} bytes and must have {}", number_, what, got, wanted)};
  }

  const RunConfig config_;
  const int64_t vocab_;

 private:
  Pack pack() const { return config_.boundary.pack; }
  int64_t width() const { return config_.model.boundary_width(); }
  PackRandom random(MessageNumber number, Direction direction) const {
    return {config_.train.seed, pack_stream(number.step, number.microbatch, number_, direction)};
  }

  const uint64_t number_;
  const at::TensorOptions options_;
};

// Sends coordinates, k wide. At the end of a step that moves the subspace the next basis goes upstream, as its version
// and U in float64 (METHOD 3).
class SubspaceBoundary final : public PackedBoundary {
 public:
  explicit SubspaceBoundary(const Cut& cut) : PackedBoundary(cut), side_(*cut.side) {}

  bool has_end_of_step(Direction direction, int64_t step) const override {
    return direction == Direction::kBackward && side_.moves_at(step);
  }

  std::vector<std::byte> end_of_step(Direction /*direction*/) override {
    const auto& next = *side_.next_basis();
    const auto u = next.u.contiguous();
    const auto bytes = tensor_bytes_of(u);
    auto message = message_of(sizeof(next.version) + bytes.size());
    std::memcpy(message.data(), &next.version, sizeof(next.version));
    std::memcpy(message.data() + sizeof(next.version), bytes.data(), bytes.size());
    return message;
  }

  // The basis must be the successor of the one this stage holds, and its columns orthonormal.
  Status take_end_of_step(Direction /*direction*/, std::span<const std::byte> message) override {
    // A basis further from orthonormal than this was not made by grassmann_step.
    constexpr double kOrthonormalTolerance = 1e-9;
    const auto& current = side_.basis();
    const size_t wanted = boundary_sizes(config_, vocab_).end_of_step;
    if (message.size() != wanted) return wrong_size("basis", message.size(), wanted);
    int64_t version = 0;
    std::memcpy(&version, message.data(), sizeof(version));
    if (version != current.version + 1)
      return Error{fmt::format("basis version {} arrived where {} was due", version, current.version + 1)};
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

std::string pack_refusal(const RunConfig& config, std::string_view width_key) {
  const int64_t width = config.model.boundary_width();
  const auto problem = pack_problem(config.boundary.pack, width);
  if (problem.empty() || config.pipeline.stages == 1) return "";
  return fmt::format("boundary.pack = \"{}\" with {} = {}: {}", to_string(config.boundary.pack), width_key, width,
                     problem);
}

struct BoundaryKind {
  std::unique_ptr<Boundary> (*make)(const Cut& cut);
  // "" or one sentence that names the key, its value and what would be right.
  std::string (*refuses)(const RunConfig& config);
};

// A kind's number on the wire is its place here (docs/wire.md).
constexpr std::array<BoundaryKind, 2> kKinds{{
    {[](const Cut& cut) -> std::unique_ptr<Boundary> { return std::make_unique<SubspaceBoundary>(cut); },
     [](const RunConfig& config) { return pack_refusal(config, "subspace.rank"); }},
    {[](const Cut& cut) -> std::unique_ptr<Boundary> { return std::make_unique<PackedBoundary>(cut); },
     [](const RunConfig& config) { return pack_refusal(config, "model.d"); }},
}};

}  // namespace

size_t boundary_kind_of(const RunConfig& config) { return config.model.is_subspace() ? 0 : 1; }

std::unique_ptr<Boundary> make_boundary(const Cut& cut) { return kKinds[boundary_kind_of(cut.config)].make(cut); }

void check_boundary(const RunConfig& config) {
  if (auto reason = kKinds[boundary_kind_of(config)].refuses(config); !reason.empty()) throw UserError(reason);
}

}  // namespace thinpipe
