// A tiny model on made-up tokens in the in-process pipeline, shared by the tests of the pipeline.
#pragma once

#include <vector>

#include "base/rng.h"
#include "config/run_config.h"
#include "pipeline/batches.h"
#include "pipeline/in_process.h"
#include "support/draw.h"
#include "support/scratch.h"
#include "text/shards.h"

namespace thinpipe::test {

constexpr int64_t kTinyVocab = 300;

// A prepared corpus of random tokens with some structure, so that the loss can fall.
class TinyCorpus {
 public:
  TinyCorpus() {
    corpus_.folder = folder_.path();
    corpus_.train = write("train.bin", 3000, 1);
    corpus_.val = write("val.bin", 400, 2);
    corpus_.vocab = kTinyVocab;
    corpus_.id = "tiny";
  }
  const PreparedCorpus& prepared() const { return corpus_; }

 private:
  std::filesystem::path write(const std::string& name, uint64_t count, uint64_t stream) const {
    const auto path = folder_ / name;
    auto writer = TokenShardWriter::create(path, kTinyVocab).take();
    std::vector<int32_t> tokens;
    const CounterRng rng(1, stream);
    int32_t token = 5;
    for (uint64_t i = 0; i < count; ++i) {
      token = static_cast<int32_t>((token * 7 + static_cast<int32_t>(below(rng, 3, i))) % 50);
      tokens.push_back(token);
    }
    writer.append(tokens).take();
    writer.finish().take();
    return path;
  }

  ScratchFolder folder_;
  PreparedCorpus corpus_;
};

inline RunConfig tiny_config(ModelMode mode) {
  RunConfig config;
  config.model.mode = mode;
  config.model.d = 24;
  config.model.blocks = 4;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.mlp_width = 32;
  config.model.subspace.rank = 8;
  config.model.subspace.full_rank_tail = 1;
  config.model.subspace.update_every = 7;
  config.data.vocab = kTinyVocab;
  config.pipeline.stages = 1;
  config.train.steps = 20;
  config.train.seq_len = 12;
  config.train.microbatch = 2;
  config.train.microbatches = 3;
  config.train.precision = Precision::kFloat64;
  config.optim.kind = OptimizerKind::kAdamw;
  config.optim.lr = 0.005;
  config.boundary.pack = Pack::kFp64;
  return config;
}

inline std::vector<double> losses_of(const RunConfig& config, const TinyCorpus& corpus) {
  validate(config);
  CorpusBatches batches(corpus.prepared(), config.train);
  InProcessPipeline pipeline(config, kTinyVocab, batches);
  std::vector<double> losses;
  for (int64_t step = 0; step < config.train.steps; ++step) losses.push_back(pipeline.step(step).loss);
  losses.push_back(pipeline.validate(batches.validation_windows()));
  return losses;
}

inline double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return worst;
}

}  // namespace thinpipe::test
