// What crosses a cut, both ways. Forward: the microbatch's token ids and its stream; backward: the stream's gradient;
// at the end of a step, what a kind of boundary has to tell beside them. A boundary turns them into the bytes of one
// message and back; it sends nothing itself. Every size follows from the run's config (boundary/sizes.h), and decoding
// refuses any other (docs/wire.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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

struct Activation {
  TokenBatch batch;
  at::Tensor stream;  // (BT, width)
};

// A cut of the run, as one of the two stages at it sees it.
struct Cut {
  const RunConfig& config;
  int64_t vocab;
  int64_t number;                // from 0
  at::TensorOptions options;     // of the tensors that are decoded
  SubspaceSide* side = nullptr;  // the stage's own; null in a dense model. Must outlive the boundary
  // The stage's too: a boundary that learns finds its parameters there, by the names that model_spec() gives them, so
  // that they are optimised and saved like any others.
  ParameterSet* parameters = nullptr;
};

// One per side of a cut. One thread at a time.
class Boundary {
 public:
  virtual ~Boundary() = default;

  virtual std::vector<std::byte> encode(const Activation& activation, MessageNumber number) = 0;
  // sequences: B of this microbatch; the ids are checked against the vocabulary.
  virtual Result<Activation> decode(std::span<const std::byte> message, int64_t sequences) = 0;
  virtual std::vector<std::byte> encode_gradient(const at::Tensor& grad, MessageNumber number) = 0;
  virtual Result<at::Tensor> decode_gradient(std::span<const std::byte> message, int64_t sequences) = 0;

  // Whether a message follows the last pass of this step in that direction. Both sides of the cut say the same.
  virtual bool has_end_of_step(Direction /*direction*/, int64_t /*step*/) const { return false; }
  // That message, and what the other side does with it. What it changes counts once the step is committed.
  virtual std::vector<std::byte> end_of_step(Direction /*direction*/) { return {}; }
  virtual Status take_end_of_step(Direction /*direction*/, std::span<const std::byte> /*message*/) { return {}; }
  // The step was applied, or (false) it is as if it had not been.
  virtual void commit(bool /*apply*/) {}
};

// The kind of a run's boundary, as its number on the wire. It follows from model.mode.
size_t boundary_kind_of(const RunConfig& config);

std::unique_ptr<Boundary> make_boundary(const Cut& cut);

// Throws UserError when the run's boundary refuses its config.
void check_boundary(const RunConfig& config);

}  // namespace thinpipe
