#include "text/encode_corpus.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <thread>

#include "base/files.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

// sentencepiece takes some 55 bytes for every byte of a document while it works on it: 15 MB a thread for the longest
// document there is (DocumentSizes). The bound on threads is what bounds memory on a machine of many cores.
constexpr unsigned kMaxThreads = 8;
constexpr uint64_t kBatchBytesPerThread = 1 << 20;

std::vector<WordEncoder> encoders_for(const Tokenizer& tokenizer, const PrepareTuning& tuning) {
  const unsigned wanted = tuning.threads > 0 ? tuning.threads : std::thread::hardware_concurrency();
  return std::vector<WordEncoder>(std::clamp(wanted, 1U, kMaxThreads), WordEncoder(tokenizer));
}

Result<TokenShardWriter> open_shard(const fs::path& path, int64_t vocab, const SplitState& split) {
  return split.documents == 0 ? TokenShardWriter::create(path, vocab)
                              : TokenShardWriter::resume(path, vocab, split.point);
}

}  // namespace

std::vector<std::vector<int32_t>> encode_documents(const Tokenizer& tokenizer, std::span<WordEncoder> encoders,
                                                   std::span<const std::string> documents) {
  std::vector<std::vector<int32_t>> ids(documents.size());
  std::vector<std::exception_ptr> failures(documents.size());
  std::atomic<size_t> next{0};
  const auto work = [&](WordEncoder& encoder) {
    for (size_t i = next++; i < documents.size(); i = next++) {
      try {
        ids[i].push_back(tokenizer.bos());
        encoder.append(documents[i], ids[i]);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t helping = std::min(encoders.size(), documents.size());
    for (size_t i = 1; i < helping; ++i) helpers.emplace_back([&, i] { work(encoders[i]); });
    work(encoders[0]);
  }
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return ids;
}

CorpusEncoder::CorpusEncoder(const Tokenizer& tokenizer, fs::path folder, PreparationState state,
                             TokenShardWriter train, TokenShardWriter val, const PrepareTuning& tuning,
                             const PrepareProgress& progress)
    : tokenizer_(tokenizer),
      folder_(std::move(folder)),
      progress_(progress),
      state_(std::move(state)),
      train_(std::move(train)),
      val_(std::move(val)),
      encoders_(encoders_for(tokenizer, tuning)),
      durable_every_bytes_(tuning.durable_every_bytes),
      batch_limit_bytes_(std::min(kBatchBytesPerThread * encoders_.size(), durable_every_bytes_)),
      durable_bytes_(state_.text_bytes()) {}

Result<std::unique_ptr<CorpusEncoder>> CorpusEncoder::open(const Tokenizer& tokenizer, const fs::path& folder,
                                                           PreparationState state, const PrepareTuning& tuning,
                                                           const PrepareProgress& progress) {
  auto train = open_shard(folder / "train.bin", tokenizer.vocab(), state.train);
  if (!train) return train.error();
  auto val = open_shard(folder / "val.bin", tokenizer.vocab(), state.val);
  if (!val) return val.error();
  return std::unique_ptr<CorpusEncoder>(new CorpusEncoder(tokenizer, folder, std::move(state), std::move(train.value()),
                                                          std::move(val.value()), tuning, progress));
}

bool CorpusEncoder::run(const Corpus& corpus, const Survey& survey) {
  const uint64_t already = state_.documents();
  const uint64_t already_bytes = state_.text_bytes();
  DocumentReader reader = corpus.read(survey.sizes);
  ContentHash hash;
  std::string document;
  uint64_t bytes = 0;
  for (uint64_t index = 0; reader.next(document).take() && index < survey.split.documents(); ++index) {
    hash.add(document);
    bytes += document.size();
    if (index < already) {
      if (progress_) progress_("finding the place where it was interrupted", bytes, already_bytes);
      continue;
    }
    batch_bytes_ += document.size();
    batch_.push_back(std::move(document));
    batch_is_val_.push_back(survey.split.is_val(index));
    if (batch_bytes_ >= batch_limit_bytes_) write_batch(survey.bytes);
  }
  write_batch(survey.bytes);
  return hash.hex() == survey.content_sha256;
}

void CorpusEncoder::write_batch(uint64_t total_bytes) {
  const auto ids = encode_documents(tokenizer_, encoders_, batch_);
  for (size_t i = 0; i < batch_.size(); ++i) {
    auto& shard = batch_is_val_[i] ? val_ : train_;
    auto& split = batch_is_val_[i] ? state_.val : state_.train;
    shard.append(ids[i]).take();
    split.documents += 1;
    split.text_bytes += batch_[i].size();
    if (progress_) progress_("tokenizing", state_.text_bytes(), total_bytes);
  }
  batch_.clear();
  batch_is_val_.clear();
  batch_bytes_ = 0;
  if (state_.text_bytes() - durable_bytes_ >= durable_every_bytes_) make_durable();
}

void CorpusEncoder::make_durable() {
  train_.sync().take();
  val_.sync().take();
  state_.train.point = train_.point();
  state_.val.point = val_.point();
  write_preparation_state(folder_ / "progress.json", state_).take();
  durable_bytes_ = state_.text_bytes();
}

void CorpusEncoder::finish(Manifest& manifest) {
  const auto finish = [&](TokenShardWriter& shard, const SplitState& split, const char* name) {
    shard.finish().take();
    return SplitManifest{split.documents, split.text_bytes, shard.point().tokens,
                         sha256_of_file(folder_ / name).take()};
  };
  manifest.train = finish(train_, state_.train, "train.bin");
  manifest.val = finish(val_, state_.val, "val.bin");
  manifest.train_unigram_entropy = unigram_entropy(train_.counts());
}

double unigram_entropy(std::span<const uint64_t> counts) {
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  double entropy = 0;
  for (const uint64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    entropy -= share * std::log(share);
  }
  return std::round(entropy * 1e6) / 1e6;
}

}  // namespace thinpipe
