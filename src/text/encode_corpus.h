// The long part of preparation: every document through the tokenizer and into its shard, on all cores, in order, with
// points from which an interrupted preparation goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text/corpus.h"
#include "text/document_split.h"
#include "text/manifest.h"
#include "text/preparation_state.h"
#include "text/prepare.h"
#include "text/tokenizer.h"
#include "text/word_encoder.h"

namespace thinpipe {

// The ids of each document, begin-of-text first, in the order of the documents whatever the number of threads: one for
// each of `encoders`, which are of this tokenizer. Throws what the first document that fails throws.
std::vector<std::vector<int32_t>> encode_documents(const Tokenizer& tokenizer, std::span<WordEncoder> encoders,
                                                   std::span<const std::string> documents);

class CorpusEncoder {
 public:
  // Everything given must outlive it. `folder` holds train.bin and val.bin as `state` says; a shard without documents
  // is begun anew.
  static Result<std::unique_ptr<CorpusEncoder>> open(const Tokenizer& tokenizer, const std::filesystem::path& folder,
                                                     PreparationState state, const PrepareTuning& tuning,
                                                     const PrepareProgress& progress);

  // Reads the whole corpus and tokenises what is not in the shards yet. False if it is not the one that was surveyed;
  // the shards are then of no use. Throws UserError.
  bool run(const Corpus& corpus, const Survey& survey);

  // Completes the shards and fills the manifest's part about them. Throws UserError.
  void finish(Manifest& manifest);

 private:
  CorpusEncoder(const Tokenizer& tokenizer, std::filesystem::path folder, PreparationState state,
                TokenShardWriter train, TokenShardWriter val, const PrepareTuning& tuning,
                const PrepareProgress& progress);
  void write_batch(uint64_t total_bytes);
  void make_durable();

  const Tokenizer& tokenizer_;
  const std::filesystem::path folder_;
  const PrepareProgress& progress_;
  PreparationState state_;
  TokenShardWriter train_;
  TokenShardWriter val_;
  std::vector<WordEncoder> encoders_;  // a thread each
  uint64_t durable_every_bytes_;
  uint64_t batch_limit_bytes_;
  uint64_t durable_bytes_;  // of text, at the last durable point

  // Documents read and not yet tokenised.
  std::vector<std::string> batch_;
  std::vector<bool> batch_is_val_;
  uint64_t batch_bytes_ = 0;
};

// -sum p ln p over the tokens that occur, in nats, rounded to 1e-6 so that the last bit of some libm's log is no part
// of an identity.
double unigram_entropy(std::span<const uint64_t> counts);

}  // namespace thinpipe
