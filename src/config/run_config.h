// All settings of a run as plain values: one struct per section of the TOML file (docs/config.md lists every key). This
// needs no libtorch, corpus or socket.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/link_shape.h"

namespace thinpipe {

enum class Positions { kRope, kSinusoidal };
// The number format a stage computes in. bf16 keeps float32 weights and moments and rounds the operands of every
// product.
enum class Precision { kFloat64, kFloat32, kBf16 };
enum class OptimizerKind { kAdamw, kRowAdamw, kMuon };
// The number format of the optimizer's moments between two steps: that of the weights, or bf16.
enum class StateFormat { kFull, kBf16 };
enum class LrSchedule { kConstant, kCosine, kLinear, kWsd };
// Number format of the values that cross a cut (docs/wire.md, "Packs").
enum class Pack { kFp64, kFp32, kBf16, kFp16, kInt8, kInt4, kInt2 };
// What crosses a cut: the whole stream, the largest numbers of each row, or the nearest matrix of low rank. The last
// two lose something and are for dense models.
enum class BoundaryKind { kStream, kTopK, kLowRank };

enum class ModelMode { kDense, kSubspace };
// What a subspace model is made for: to be exported as a plain LLaMA, or to reach a loss soonest.
enum class Recipe { kLlama, kFast };
// The token table that the stream is anchored to: the shared frozen T_fixed, or a trainable one per anchor group.
enum class Anchors { kFixed, kStage };
// What the anchor says about the previous token: nothing, or its row of a second trainable table per anchor group.
enum class Previous { kNone, kTable };
// How a block multiplies its input: through the anchor table, by lifting to d first, or the cheaper of the two (METHOD
// 1b).
enum class InputForm { kAuto, kTable, kDirect };
enum class ScheduleKind { kGpipe, k1f1b };
// What a stage keeps of a microbatch until its backward pass: everything, or only the input of each block, and computes
// the rest again.
enum class Recompute { kNone, kBlock };
// What the bytes of a text file mean. kAuto decides for each file.
enum class Encoding { kUtf8, kLatin1, kUtf16, kAuto };
// What happens to bytes that mean nothing in that encoding.
enum class Invalid { kRefuse, kReplace, kSkip };
// When a stage writes its checkpoint: during the next steps, from a copy in memory, or before the next step.
enum class CheckpointMode { kAuto, kAsync, kSync };

// [subspace]. Part of the model config; used when model.mode = "subspace".
struct SubspaceConfig {
  int64_t rank = 8;            // k
  int64_t full_rank_tail = 1;  // n: the last n blocks carry x and have dense output projections
  Anchors anchors = Anchors::kFixed;
  std::vector<int64_t> anchor_groups;  // blocks per anchor table with anchors = "stage"; default: the cuts
  Previous previous = Previous::kNone;
  int64_t anchor_rank = 0;  // r: trained tables are V x r times r x d; 0: V x d
  double anchor_std = 0.3;
  InputForm input = InputForm::kAuto;
  bool zero_init = false;    // A1, A2 start at zero
  int64_t update_every = 0;  // steps between updates of U; 0: never
  double update_rate = 0.1;  // alpha, the step size of these updates

  bool operator==(const SubspaceConfig&) const = default;
};

inline constexpr const char* kTableFromCorpus = "corpus";

// [model]. Symbols as in docs/method.md: d, L (blocks), V (vocab, in [data]).
struct ModelConfig {
  ModelMode mode = ModelMode::kSubspace;
  Recipe recipe = Recipe::kLlama;  // decides the defaults of other keys, and nothing else
  int64_t d = 320;                 // width of the residual stream
  int64_t blocks = 5;              // L
  int64_t heads = 4;               // query heads; divides d
  int64_t kv_heads = 4;            // key/value heads; divides heads
  int64_t mlp_width = 864;         // SwiGLU's inner width
  Positions positions = Positions::kRope;
  double rope_base = 10000.0;
  double position_scale = 0.3;  // factor on sinusoidal positions, whose root mean square is 0.71
  bool qk_norm = false;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  // Where the token table comes from, which is T_fixed of a subspace model and the first embedding of a dense one.
  // Empty: the seed; a SHA-256 of its rows: a file in the run's folder; kTableFromCorpus: the training text, and then
  // the hash takes the word's place when the run begins (pipeline/corpus_table.h). A config file that does not say
  // means kTableFromCorpus in a subspace model.
  std::string table;

  SubspaceConfig subspace;

  int64_t head_dim() const { return d / heads; }
  bool is_subspace() const { return mode == ModelMode::kSubspace; }
  bool is_fast() const { return is_subspace() && recipe == Recipe::kFast; }
  // The first block whose stream is x instead of coordinates.
  int64_t first_dense_block() const { return is_subspace() ? blocks - subspace.full_rank_tail : 0; }
  // Width of the vectors that cross a cut. In a subspace model it is k at every cut: only the last stage lifts to x.
  int64_t boundary_width() const { return is_subspace() ? subspace.rank : d; }
  bool operator==(const ModelConfig&) const = default;
};

// [data]
struct DataConfig {
  std::string corpus = "kjv";  // "kjv", or the path of a text file, a .jsonl file, or a folder of both
  std::string tokenizer;       // path of a sentencepiece .model; empty: train one on the corpus
  int64_t vocab = 4096;        // V of the tokenizer to train; must match a given tokenizer
  double val_fraction = 0.05;  // fraction of the documents kept for validation
  Encoding encoding = Encoding::kUtf8;
  Invalid invalid = Invalid::kRefuse;
  std::string field = "text";  // of a JSON line

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
  std::string device = "cpu";  // "cpu", "cuda", "cuda:N"
  int64_t threads = 0;         // compute threads per stage; 0: one per core
  Recompute recompute = Recompute::kNone;
  int64_t eval_every = 40;      // steps between validation passes; 0: only at the end
  int64_t sample_every = 40;    // steps between samples of the model's text; 0: only at the end
  int64_t eval_sequences = 64;  // sequences per validation pass; the last pass uses the whole split

  bool operator==(const TrainConfig&) const = default;
};

// [optim]. muon updates the blocks' matrices; adamw updates the rest with adamw_lr (embedding: times
// embedding_lr_scale).
struct OptimConfig {
  OptimizerKind kind = OptimizerKind::kMuon;
  double lr = 0.02;                 // of the matrices; of everything unless kind = muon
  double adamw_lr = 0.004;          // of what muon does not update; kind = muon only
  double embedding_lr_scale = 8.0;  // factor on adamw_lr for the embedding; kind = muon only
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double momentum = 0.95;  // muon only
  StateFormat state = StateFormat::kFull;
  double weight_decay = 0.0;  // decoupled; matrices and embeddings only, never gains
  double clip = 1.0;          // global gradient norm; 0: no clipping
  LrSchedule schedule = LrSchedule::kWsd;
  int64_t warmup = 10;          // steps of linear warm-up
  double decay_fraction = 0.4;  // wsd: the learning rate falls linearly in this last fraction of the steps
  double min_lr_ratio = 0.05;   // cosine, linear, wsd: final learning rate as a fraction of the peak

  bool operator==(const OptimConfig&) const = default;
};

// [pipeline]
struct PipelineConfig {
  int64_t stages = 4;
  std::vector<int64_t> cuts;  // blocks per stage, summing to model.blocks; empty: even, the remainder first
  // cuts = "auto": the cuts follow the speed and memory of the machines that take part (plan/placement.h). `cuts` is
  // empty until placement sets it and clears this flag.
  bool auto_cuts = false;
  ScheduleKind schedule = ScheduleKind::k1f1b;

  bool operator==(const PipelineConfig&) const = default;
};

// [boundary]
struct BoundaryConfig {
  BoundaryKind kind = BoundaryKind::kStream;
  Pack pack = Pack::kInt8;      // default: int8 for coordinates, fp32 for x
  int64_t keep = 16;            // numbers per row of topk, rank of lowrank
  bool error_feedback = false;  // the next message also carries what this one lost

  bool operator==(const BoundaryConfig&) const = default;
};

// [link]: limits on the links of a run on one machine; link_settings() parses the values.
struct LinkConfig {
  std::string rate = "80mbit";
  std::string delay = "0ms";
  std::string jitter = "0ms";

  bool operator==(const LinkConfig&) const = default;
};

// [checkpoint]
struct CheckpointConfig {
  int64_t every = 20;      // steps between checkpoints; 0: only when the run ends
  int64_t keep_last = 2;   // number of newest checkpoints to keep
  int64_t keep_every = 0;  // also keep those of steps divisible by this; 0: none
  CheckpointMode mode = CheckpointMode::kAuto;

  bool operator==(const CheckpointConfig&) const = default;
};

// [cluster]
struct ClusterConfig {
  int64_t lease_s = 15;      // a worker that is silent for this long loses its stage
  int64_t max_failures = 5;  // attempts at one step before the run stops
  int64_t max_skipped = 10;  // steps in a row without a finite loss and norm before the run stops
  bool share_model = true;   // members may fetch the finished model

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
std::string_view to_string(BoundaryKind kind);

// Default inner width of SwiGLU: 8/3 d, rounded up to a multiple of 32.
int64_t default_mlp_width(int64_t d);

// Checks that every key is in its range and that the keys agree with each other. Throws UserError that names key, value
// and what would be right. With these ranges no count of values, bytes or tokens of a valid config overflows int64.
void validate(const RunConfig& config);

// The limits on the two directions of a cut.
struct CutSettings {
  LinkShape forward;   // from the earlier stage to the later one
  LinkShape backward;  // from the later stage to the earlier one

  bool operator==(const CutSettings&) const = default;
};

// The values of [link], one entry per cut. Each key is one value for all cuts, or a comma-separated list with one value
// per cut; a value is `both` or `forward/backward`: "80mbit", "80mbit/10mbit", "80mbit, 20mbit/5mbit, unlimited".
// Throws UserError that names key, value and what would be right.
std::vector<CutSettings> link_settings(const RunConfig& config);

// Blocks per stage: pipeline.cuts, or an even division if there are none (also for cuts = "auto" before placement). The
// config must be validated.
std::vector<int64_t> blocks_per_stage(const RunConfig& config);

}  // namespace thinpipe
