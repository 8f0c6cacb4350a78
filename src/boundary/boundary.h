// What crosses a cut. Forward: the microbatch's token ids and its stream. Backward: the stream's gradient. At the end
// of a step: an extra message that some kinds of boundary need. A boundary converts these to the bytes of one message
// and back; it sends nothing itself. Every size follows from the run's config (boundary/sizes.h), and decoding refuses
// messages of any other size (docs/wire.md).
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

// Identifies a message; stochastic rounding uses it to draw its random numbers.
struct MessageNumber {
  uint64_t step;
  uint64_t microbatch;
  bool evaluation = false;  // nothing is learnt from it: rounded to nearest, without error feedback
};

struct Activation {
  TokenBatch batch;
  at::Tensor stream;  // (BT, width)
};

// A cut of the run, as seen by one of its two stages.
struct Cut {
  const RunConfig& config;
  int64_t vocab;
  int64_t number;                // from 0
  at::TensorOptions options;     // of the tensors that are decoded
  SubspaceSide* side = nullptr;  // of the stage; null in a dense model. Must outlive the boundary
  // Also of the stage. A boundary with trainable parameters finds them here, under the names from model_spec(), so that
  // they are optimised and saved like all others.
  ParameterSet* parameters = nullptr;
};

// One per side of a cut. One thread at a time. The earlier stage encodes activations, the later one gradients, and each
// in the order of the microbatches.
class Boundary {
 public:
  virtual ~Boundary() = default;

  virtual std::vector<std::byte> encode(const Activation& activation, MessageNumber number) = 0;
  // sequences: B of this microbatch; the ids are checked against the vocabulary.
  virtual Result<Activation> decode(std::span<const std::byte> message, int64_t sequences) = 0;
  virtual std::vector<std::byte> encode_gradient(const at::Tensor& grad, MessageNumber number) = 0;
  virtual Result<at::Tensor> decode_gradient(std::span<const std::byte> message, int64_t sequences) = 0;

  // Whether a message follows the last pass of this step in this direction. Both sides of the cut give the same answer.
  virtual bool has_end_of_step(Direction /*direction*/, int64_t /*step*/) const { return false; }
  // Makes that message; take_end_of_step() handles it on the other side. Its changes apply when the step is committed.
  virtual std::vector<std::byte> end_of_step(Direction /*direction*/) { return {}; }
  virtual Status take_end_of_step(Direction /*direction*/, std::span<const std::byte> /*message*/) { return {}; }
  // The step was applied, or (false) it was abandoned and must leave no trace.
  virtual void commit(bool /*apply*/) {}

  // With boundary.error_feedback: what this side's messages lost so far and the next one will carry, (BT, width), as of
  // the last commit. Undefined: nothing. Part of a checkpoint.
  virtual at::Tensor left_out() const { return {}; }
  virtual void set_left_out(at::Tensor /*left_out*/) {}
};

std::unique_ptr<Boundary> make_boundary(const Cut& cut);

// Throws UserError if the run's boundary does not accept its config.
void check_boundary(const RunConfig& config);

}  // namespace thinpipe
