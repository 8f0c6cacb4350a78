#include "text/tokenizer_training.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "base/rng.h"
#include "text/sentencepiece_api.h"
#include "text/utf8.h"

namespace thinpipe {
namespace {

constexpr uint64_t kSampleBytes = 16 << 20;
// sentencepiece keeps about 100 bytes for every character of every distinct word; this bounds them to about 300 MB.
constexpr uint64_t kDistinctWordBytes = 3 << 20;
// Several lines make one training chunk: the pieces around a line end ("." + newline, a capital after it) are learned
// like any other, which saves 5 % of the tokens of the KJV against training line by line.
constexpr size_t kChunkBytes = 2 << 10;

// Hands the documents to sentencepiece in chunks, sampled.
class SampledChunks final : public ChunkSource {
 public:
  SampledChunks(const DocumentSource& documents, uint64_t corpus_bytes) : documents_(documents) {
    if (corpus_bytes > kSampleBytes) keep_ = static_cast<double>(kSampleBytes) / static_cast<double>(corpus_bytes);
  }

  const std::optional<Error>& error() const { return error_; }

  const std::string* next() override {
    const CounterRng draws(0, "tokenizer training sample");
    bool kept = false;
    while (!kept && next_chunk()) kept = draws.uniform(chunk_index_++) < keep_;
    if (kept && room_for_words()) return &chunk_;
    words_ = {};  // sentencepiece is about to need the memory
    return nullptr;
  }

 private:
  // False at the end and on an error.
  bool next_chunk() {
    while (position_ == document_.size()) {
      position_ = 0;
      auto more = documents_(document_);
      if (!more) error_ = more.error();
      if (!more || !more.value()) {
        document_.clear();
        return false;
      }
    }
    const std::string_view rest = std::string_view(document_).substr(position_);
    chunk_.assign(rest, 0, cut_length(rest, kChunkBytes));
    position_ += chunk_.size();
    return true;
  }

  bool room_for_words() {
    std::string_view rest = chunk_;
    while (!rest.empty()) {
      const std::string_view word = rest.substr(0, std::min(rest.find(' ', 1), rest.size()));
      rest.remove_prefix(word.size());
      if (words_.insert(stream_of(word)).second) distinct_word_bytes_ += word.size();
    }
    return distinct_word_bytes_ <= kDistinctWordBytes;
  }

  const DocumentSource& documents_;
  double keep_ = 1.0;
  std::string document_;
  size_t position_ = 0;
  std::string chunk_;
  uint64_t chunk_index_ = 0;
  std::optional<Error> error_;
  std::unordered_set<uint64_t> words_;  // by hash: a collision only makes the sample a word larger
  uint64_t distinct_word_bytes_ = 0;
};

// The number after `words` in sentencepiece's message; 0 if it is not there.
int64_t number_after(std::string_view message, std::string_view words) {
  const size_t at = message.find(words);
  int64_t number = 0;
  if (at != std::string_view::npos) {
    std::from_chars(message.data() + at + words.size(), message.data() + message.size(), number);
  }
  return number;
}

[[noreturn]] void explain_failure(std::string_view message, int64_t vocab) {
  if (const int64_t largest = number_after(message, "Please set it to a value <= "); largest > 0) {
    throw UserError(fmt::format("data.vocab = {} is more than the training text can fill; it has pieces for at most {}",
                                vocab, largest));
  }
  if (const int64_t smallest = number_after(message, fmt::format("required_chars. {} vs ", vocab)); smallest > 0) {
    throw UserError(fmt::format(
        "data.vocab = {} is too small: the characters of this corpus, 256 bytes and 3 control tokens need {}", vocab,
        smallest));
  }
  throw UserError(fmt::format("cannot train a tokenizer with data.vocab = {} on this corpus: {}", vocab, message));
}

}  // namespace

Result<std::string> train_tokenizer(const DocumentSource& documents, uint64_t corpus_bytes, int64_t vocab) {
  SampledChunks chunks(documents, corpus_bytes);
  std::string model;
  const auto problem = sentencepiece_api().train(
      {
          {"model_type", "bpe"},
          {"vocab_size", std::to_string(vocab)},
          {"hard_vocab_limit", "true"},
          // Nothing is normalised and no byte is without a token: decode(encode(text)) == text.
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "true"},
          {"allow_whitespace_only_pieces", "true"},
          {"byte_fallback", "true"},
          // The rarest ten-thousandth of the characters is spelled in bytes instead of taking vocabulary.
          {"character_coverage", "0.9999"},
          {"split_digits", "true"},
          {"unk_id", "0"},
          {"bos_id", "1"},
          {"eos_id", "2"},
          {"pad_id", "-1"},
          {"max_sentence_length", std::to_string(2 * cut_limit(kChunkBytes))},
          {"num_threads", "1"},
          {"minloglevel", "3"},
      },
      chunks, &model);
  if (chunks.error()) return *chunks.error();
  if (!problem.empty()) explain_failure(problem, vocab);
  return model;
}

}  // namespace thinpipe
