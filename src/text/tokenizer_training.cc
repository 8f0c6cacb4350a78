#include "text/tokenizer_training.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/rng.h"
#include "text/corpus.h"
#include "text/tokenizer.h"

namespace thinpipe {
namespace {

constexpr uint64_t kSampleBytes = 16 << 20;
// sentencepiece keeps about 100 bytes per character of every distinct word; this limits them to about 300 MB.
constexpr uint64_t kDistinctWordBytes = 3 << 20;
// Several lines make one training chunk, so that pieces around a line end ("." + newline, a capital after it) are
// learned like any other. That saves 5 % of the tokens of the KJV compared with training line by line.
constexpr size_t kChunkBytes = 2 << 10;
constexpr int64_t kControlTokens = 3;
constexpr int64_t kBytePieces = 256;
// The number of characters in Unicode. A larger number would only cost time: sentencepiece spends time on every
// possible piece.
constexpr int64_t kAllCharacters = 0x110000 + kControlTokens;

// A piece that occurs only a few times is learned by nobody.
constexpr uint64_t kBytesPerPiece = 100;
constexpr int64_t kSmallVocab = 512;

using Chunks = std::vector<std::string>;
using Options = std::map<std::string, std::string>;

// Counts the bytes of distinct words, by hash. A collision only makes the sample one word larger.
class DistinctWords {
 public:
  void add(std::string_view text) {
    while (!text.empty()) {
      const std::string_view word = text.substr(0, std::min(text.find(' ', 1), text.size()));
      text.remove_prefix(word.size());
      if (seen_.insert(stream_of(word)).second) bytes_ += word.size();
    }
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::unordered_set<uint64_t> seen_;
  uint64_t bytes_ = 0;
};

// Cuts the documents into chunks and keeps an even sample of them.
Result<Chunks> sample_chunks(const DocumentSource& documents, uint64_t corpus_bytes) {
  const CounterRng draws(0, "tokenizer training sample");
  const double keep =
      std::min(1.0, static_cast<double>(kSampleBytes) / static_cast<double>(std::max<uint64_t>(1, corpus_bytes)));
  Chunks chunks;
  DistinctWords words;
  uint64_t index = 0;
  std::string document;
  while (true) {
    const bool more = TRY(documents(document));
    if (!more) return chunks;
    for (std::string_view rest = document; !rest.empty();) {
      const std::string_view chunk = rest.substr(0, cut_length(rest, kChunkBytes));
      rest.remove_prefix(chunk.size());
      if (draws.uniform(index++) >= keep) continue;
      words.add(chunk);
      if (words.bytes() > kDistinctWordBytes) return chunks;
      chunks.emplace_back(chunk);
    }
  }
}

class ChunkList final : public ChunkSource {
 public:
  explicit ChunkList(const Chunks& chunks) : chunks_(chunks) {}
  const std::string* next() override { return next_ < chunks_.size() ? &chunks_[next_++] : nullptr; }

 private:
  const Chunks& chunks_;
  size_t next_ = 0;
};

// Fills `model` and returns "", or returns sentencepiece's reason. `changes` replace options.
std::string train(const Chunks& chunks, int64_t vocab, const Options& changes, std::string& model) {
  Options options = changes;
  options.merge(Options{
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab)},
      {"hard_vocab_limit", "true"},
      // No normalisation, and a token for every byte: decode(encode(text)) == text.
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "true"},
      {"allow_whitespace_only_pieces", "true"},
      {"byte_fallback", "true"},
      // The rarest 0.01 % of the characters are spelled as bytes and take no vocabulary.
      {"character_coverage", "0.9999"},
      {"split_digits", "true"},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"max_sentence_length", std::to_string(2 * cut_limit(kChunkBytes))},
      {"num_threads", "1"},
      {"minloglevel", "3"},
  });
  ChunkList source(chunks);
  return sentencepiece_api().train({options.begin(), options.end()}, source, &model);
}

// The number of pieces of a model trained without an exact limit; 0 if it cannot be trained.
int64_t pieces_without_limit(const Chunks& chunks, int64_t vocab, Options changes) {
  changes.emplace("hard_vocab_limit", "false");
  std::string model;
  if (!train(chunks, vocab, changes, model).empty()) return 0;
  const auto proto = parse_model_proto(model);
  return proto ? static_cast<int64_t>(proto.value().pieces.size()) : 0;
}

// A model of single characters has everything that a BPE model must have, except the bytes. 0 if there is none.
int64_t characters_in(const Chunks& chunks) {
  return pieces_without_limit(chunks, kAllCharacters, {{"model_type", "char"}, {"byte_fallback", "false"}});
}

// Finds out why training failed, by training models that cannot fail for one of the possible reasons.
[[noreturn]] void explain_failure(const Chunks& chunks, int64_t vocab, const std::string& reason) {
  const int64_t characters = characters_in(chunks);
  if (characters > 0 && characters + kBytePieces > vocab) {
    throw UserError(
        fmt::format("data.vocab = {} is too small: this corpus needs at least {}, for {} characters, {} bytes and {} "
                    "control tokens",
                    vocab, characters + kBytePieces, characters - kControlTokens, kBytePieces, kControlTokens));
  }
  const int64_t most = pieces_without_limit(chunks, vocab, {});
  if (most > 0 && most < vocab) {
    throw UserError(fmt::format("data.vocab = {} is too large: the training text has at most {} pieces", vocab, most));
  }
  throw UserError(fmt::format("cannot train a tokenizer with data.vocab = {} on this corpus: {}", vocab, reason));
}

}  // namespace

Result<std::string> train_tokenizer(const DocumentSource& documents, uint64_t corpus_bytes, int64_t vocab) {
  const Chunks chunks = TRY(sample_chunks(documents, corpus_bytes));
  std::string model;
  const std::string reason = train(chunks, vocab, {}, model);
  if (!reason.empty()) explain_failure(chunks, vocab, reason);
  return model;
}

Result<int64_t> fitting_vocab(const DocumentSource& documents, uint64_t corpus_bytes, int64_t wanted) {
  const Chunks chunks = TRY(sample_chunks(documents, corpus_bytes));
  const int64_t least = characters_in(chunks) + kBytePieces;
  const auto by_size = static_cast<int64_t>(corpus_bytes / kBytesPerPiece);
  const int64_t chosen = std::max(least, std::min(wanted, std::max(kSmallVocab, by_size)));
  const int64_t most = pieces_without_limit(chunks, chosen, {});
  return most > 0 ? std::min(most, chosen) : chosen;
}

}  // namespace thinpipe
