// Everything a run is told, as plain values: one struct per section of the TOML file (docs/config.md lists every key).
// Nothing here needs libtorch, a corpus or a socket; the folders that do read their own section.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace thinpipe {

enum class Positions { kRope, kSinusoidal };
// What the stage computes in. bf16 keeps float32 master weights and moments and rounds the operands of every product.
enum class Precision { kFloat64, kFloat32, kBf16 };
enum class OptimizerKind { kAdamw, kRowAdamw, kMuon };
enum class LrSchedule { kConstant, kCosine, kLinear, kWsd };
// How the numbers that cross a cut are written (docs/wire.md, "Packs").
enum class Pack { kFp64, kFp32, kBf16, kFp16, kInt8, kInt4, kInt2 };

enum class ModelMode { kDense, kSubspace };
// Whose token table the stream is anchored to: the shared frozen T_fixed, or a trainable one per anchor group.
enum class Anchors { kFixed, kStage };
// RMSNorm of the sum c U^T + e, or of the two parts by themselves.
enum class NormForm { kJoint, kSplit };
// How a block multiplies its input: by the anchor table, by lifting to d first, or whichever is cheaper (METHOD 1b).
enum class InputForm { kAuto, kTable, kDirect };
enum class ScheduleKind { kGpipe, k1f1b };
// When a stage writes its checkpoint: beside the next steps from a copy in memory, or before it goes on.
enum class CheckpointMode { kAuto, kAsync, kSync };

// [subspace]: the model's own when model.mode = "subspace".
struct SubspaceConfig {
  int64_t rank = 16;           // k
  int64_t full_rank_tail = 1;  // n: the last n blocks carry x and have dense output projections
  Anchors anchors = Anchors::kFixed;
  std::vector<int64_t> anchor_groups;  // blocks per anchor table with anchors = "stage"; empty: the cuts at creation
  NormForm norm = NormForm::kJoint;
  double anchor_std = 0.3;
  std::string table;  // SHA-256 of T_fixed's rows, whose file lies beside the run; empty: derived from the seed
  InputForm input = InputForm::kAuto;
  bool zero_init = false;      // A1, A2 start at zero
  int64_t update_every = 500;  // steps between moves of U; 0: never
  double update_rate = 0.1;    // alpha of such a move

  bool operator==(const SubspaceConfig&) const = default;
};

// [model]. Symbols as in the method: d, L (blocks), V (vocab, in [data]).
struct ModelConfig {
  ModelMode mode = ModelMode::kSubspace;
  int64_t d = 320;          // width of the residual stream
  int64_t blocks = 4;       // L
  int64_t heads = 4;        // query heads; divides d
  int64_t kv_heads = 4;     // key/value heads; divides heads
  int64_t mlp_width = 864;  // SwiGLU's inner width
  Positions positions = Positions::kRope;
  double rope_base = 10000.0;
  double position_scale = 0.3;  // of sinusoidal positions, whose root mean square is 0.71 without it
  bool qk_norm = false;
  double norm_eps = 1e-5;
  double init_std = 0.02;

  SubspaceConfig subspace;

  int64_t head_dim() const { return d / heads; }
  bool is_subspace() const { return mode == ModelMode::kSubspace; }
  // The first block that carries x instead of coordinates.
  int64_t first_dense_block() const { return is_subspace() ? blocks - subspace.full_rank_tail : 0; }
  // Width of what crosses any cut: the last stage lifts to x itself, so up to there it is k.
  int64_t boundary_width() const { return is_subspace() ? subspace.rank : d; }
  bool operator==(const ModelConfig&) const = default;
};

// [data]
struct DataConfig {
  std::string corpus = "kjv";  // "kjv", or the path of a UTF-8 file, a .jsonl file, or a folder of both
  std::string tokenizer;       // path of a sentencepiece .model; empty: train one on the corpus
  int64_t vocab = 4096;        // V of the tokenizer to train; must equal a loaded one's
  double val_fraction = 0.05;  // share of the documents that training never sees

  bool operator==(const DataConfig&) const = default;
};

// [train]
struct TrainConfig {
  int64_t steps = 120;
  int64_t seq_len = 256;     // T
  int64_t microbatch = 4;    // B, sequences in a microbatch
  int64_t microbatches = 4;  // M, microbatches in a step
  uint64_t seed = 1;
  Precision precision = Precision::kFloat32;
  std::string device = "cpu";   // "cpu", "cuda", "cuda:N"
  int64_t threads = 0;          // compute threads per stage; 0: all cores for one stage, one each for several
  int64_t eval_every = 40;      // steps between validation passes; 0: only at the end
  int64_t eval_sequences = 64;  // validation sequences in such a pass; the final one uses the whole split

  bool operator==(const TrainConfig&) const = default;
};

// [optim]. muon takes the blocks' matrices; everything else takes adamw with adamw_lr (embedding: x
// embedding_lr_scale).
struct OptimConfig {
  OptimizerKind kind = OptimizerKind::kMuon;
  double lr = 0.02;                 // of the matrices; with kind = adamw, of everything
  double adamw_lr = 0.004;          // of what muon does not take; unused with kind = adamw
  double embedding_lr_scale = 8.0;  // on the embedding's lr, muon runs only
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double momentum = 0.95;     // muon's
  double weight_decay = 0.0;  // decoupled; matrices and embeddings only, never gains
  double clip = 1.0;          // global gradient norm; 0: no clipping
  LrSchedule schedule = LrSchedule::kWsd;
  int64_t warmup = 10;          // steps of linear warm-up
  double decay_fraction = 0.4;  // wsd: the last share of the steps falls linearly
  double min_lr_ratio = 0.05;   // where cosine, linear and wsd end, as a share of the peak

  bool operator==(const OptimConfig&) const = default;
};

// [pipeline]
struct PipelineConfig {
  int64_t stages = 4;
  std::vector<int64_t> cuts;  // blocks per stage, summing to model.blocks; empty: as even as can be, the rest early
  // cuts = "auto": the run is cut by the speed and memory of the machines that take part (plan/placement.h). `cuts` is
  // empty then; placing sets it and ends this.
  bool auto_cuts = false;
  ScheduleKind schedule = ScheduleKind::k1f1b;

  bool operator==(const PipelineConfig&) const = default;
};

// [boundary]
struct BoundaryConfig {
  Pack pack = Pack::kInt4;  // int4 for coordinates, fp32 for x

  bool operator==(const BoundaryConfig&) const = default;
};

// [link]: what the links of a run on one machine are slowed down to; link_settings() reads the values.
struct LinkConfig {
  std::string rate = "80mbit";
  std::string delay = "0ms";
  std::string jitter = "0ms";

  bool operator==(const LinkConfig&) const = default;
};

// [checkpoint]
struct CheckpointConfig {
  int64_t every = 20;      // steps; 0: only when the run ends
  int64_t keep_last = 2;   // newest ones kept
  int64_t keep_every = 0;  // and those of steps divisible by this; 0: none
  CheckpointMode mode = CheckpointMode::kAuto;

  bool operator==(const CheckpointConfig&) const = default;
};

// [cluster]
struct ClusterConfig {
  int64_t lease_s = 15;      // a worker that is silent for this long loses its stage
  int64_t max_failures = 5;  // attempts at one step before the run stops
  int64_t max_skipped = 10;  // steps in a row without a finite loss and norm before the run stops

  bool operator==(const ClusterConfig&) const = default;
};

struct RunConfig {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimConfig optim;
  PipelineConfig pipeline;
  BoundaryConfig boundary;
  LinkConfig link;
  CheckpointConfig checkpoint;
  ClusterConfig cluster;

  bool operator==(const RunConfig&) const = default;
};

// The names the TOML file uses: "rope", "bf16", "muon", "wsd".
std::string_view to_string(Positions positions);
std::string_view to_string(Precision precision);
std::string_view to_string(OptimizerKind kind);
std::string_view to_string(LrSchedule schedule);
std::string_view to_string(Pack pack);

// SwiGLU's inner width when nobody chose one: 8/3 d, rounded up to a multiple of 32.
int64_t default_mlp_width(int64_t d);

// Every key in its range, and the keys agree with one another; else throws UserError naming key, value and what is
// right. The ranges are such that no count of values, bytes or tokens made from a valid config overflows int64.
void validate(const RunConfig& config);

// What one direction of a cut is slowed down to.
struct DirectionSettings {
  uint64_t rate_bits_per_s = 0;  // 0: unlimited
  Duration delay{0};
  Duration jitter{0};

  bool shapes() const { return rate_bits_per_s > 0 || delay.count() > 0 || jitter.count() > 0; }
  bool operator==(const DirectionSettings&) const = default;
};

struct CutSettings {
  DirectionSettings forward;   // from the earlier stage to the later one
  DirectionSettings backward;  // and back

  bool operator==(const CutSettings&) const = default;
};

// [link], one per cut. Each key is one value for all cuts or a list of as many as there are cuts, separated by commas;
// a value is `both` or `forward/backward`: "80mbit", "80mbit/10mbit", "80mbit, 20mbit/5mbit, unlimited". Throws
// UserError that names key, value and what is right.
std::vector<CutSettings> link_settings(const RunConfig& config);

// Blocks per stage: pipeline.cuts, or the even division, also of cuts = "auto" before it is placed. The config must be
// validated.
std::vector<int64_t> blocks_per_stage(const RunConfig& config);

}  // namespace thinpipe
