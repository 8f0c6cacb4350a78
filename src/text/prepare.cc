#include "text/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/units.h"
#include "text/corpus.h"
#include "text/shards.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/tokenizer_training.h"
#include "text/word_encoder.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

// Increase this whenever the same settings and text would give different files: split, cutting, tokenizer training,
// formats.
constexpr int kPreparationVersion = 1;

// sentencepiece needs about 55 bytes per byte of a document: 15 MB a thread for the longest possible document
// (DocumentSizes). This bounds memory on a machine with many cores.
constexpr unsigned kMaxThreads = 8;
constexpr uint64_t kBatchBytesPerThread = 1 << 20;

constexpr Duration kLeastMeasured = std::chrono::milliseconds(500);  // a rate over less time means nothing

void report(const PrepareProgress& progress, std::string_view phase, uint64_t done_bytes, uint64_t total_bytes) {
  if (progress) progress(phase, done_bytes, total_bytes);
}

std::optional<Tokenizer> load_given_tokenizer(const DataConfig& data) {
  if (data.tokenizer.empty()) return std::nullopt;
  auto tokenizer = Tokenizer::load(data.tokenizer);
  if (!tokenizer) throw UserError("data.tokenizer: " + tokenizer.error().message);
  if (tokenizer.value().vocab() != data.vocab) {
    throw UserError(fmt::format("data.vocab = {}, but data.tokenizer {} has {} pieces; set data.vocab = {}", data.vocab,
                                data.tokenizer, tokenizer.value().vocab(), tokenizer.value().vocab()));
  }
  return std::move(tokenizer).take();
}

void check_fraction(const DataConfig& data) {
  if (data.val_fraction >= 0 && data.val_fraction < 1) return;
  throw UserError(fmt::format("data.val_fraction = {} must be at least 0 and below 1", data.val_fraction));
}

Survey survey_with_progress(const DataConfig& data, const Corpus& corpus, const PrepareProgress& progress) {
  return survey_corpus(corpus, data.val_fraction,
                       [&](uint64_t bytes) { report(progress, "reading the corpus", bytes, 0); });
}

std::string cache_key(const DataConfig& data, const Survey& survey, const std::optional<Tokenizer>& given) {
  const std::string tokenizer = given ? sha256_hex(given->model()) : "trained";
  return sha256_hex(fmt::format("thinpipe prepared corpus {}\n{}\n{}\n{}\n{}\n", kPreparationVersion,
                                survey.content_sha256, tokenizer, data.vocab, data.val_fraction))
      .substr(0, 32);
}

// The training documents of a surveyed corpus. A DocumentSource: pass it with std::ref.
class TrainingDocuments {
 public:
  TrainingDocuments(const Corpus& corpus, const Survey& survey, std::string_view phase, const PrepareProgress& progress)
      : reader_(corpus.read(survey.sizes)), survey_(survey), phase_(phase), progress_(progress) {}

  Result<bool> operator()(std::string& document) {
    while (true) {
      const bool more = TRY(reader_.next(document));
      if (!more) return false;
      bytes_ += document.size();
      report(progress_, phase_, bytes_, survey_.bytes);
      // The source may have grown since the survey; encode_corpus() finds that by the hash.
      if (index_++ < survey_.split.documents() && !survey_.split.is_val(index_ - 1)) return true;
    }
  }

 private:
  DocumentReader reader_;
  const Survey& survey_;
  std::string_view phase_;
  const PrepareProgress& progress_;
  uint64_t index_ = 0;
  uint64_t bytes_ = 0;
};

Tokenizer train_on_training_documents(const Corpus& corpus, const Survey& survey, int64_t vocab,
                                      const PrepareProgress& progress) {
  TrainingDocuments documents(corpus, survey, "training the tokenizer", progress);
  std::string model = train_tokenizer(std::ref(documents), survey.bytes, vocab).take();
  return Tokenizer::parse(std::move(model), "the tokenizer just trained").take();
}

// -sum p ln p over the tokens that occur, in nats. Rounded to 1e-6, so that the last bit of a machine's log() is not
// part of the corpus's identity.
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

// The ids of each document, begin-of-text first, in the order of the documents. Uses one thread per encoder. If several
// documents fail, throws the exception of the first one.
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

// A shard that is being written, with its part of the manifest.
struct Split {
  fs::path path;
  TokenShardWriter shard;
  SplitManifest manifest;

  Split(const fs::path& file, int64_t vocab) : path(file), shard(TokenShardWriter::create(file, vocab).take()) {}

  void append(std::string_view document, std::span<const int32_t> ids) {
    shard.append(ids).take();
    manifest.documents += 1;
    manifest.text_bytes += document.size();
  }
  void finish() {
    shard.finish().take();
    manifest.tokens = shard.tokens();
    manifest.sha256 = sha256_of_file(path).take();
  }
};

// The long part: tokenises every document into train.bin or val.bin in `folder`, batch by batch, and returns the
// manifest. Throws UserError, also if the corpus is no longer the one that was surveyed.
Manifest encode_corpus(const Corpus& corpus, const Survey& survey, const Tokenizer& tokenizer, const fs::path& folder,
                       const PrepareProgress& progress, unsigned threads) {
  Split train(folder / "train.bin", tokenizer.vocab());
  Split val(folder / "val.bin", tokenizer.vocab());
  if (threads == 0) threads = std::thread::hardware_concurrency();
  std::vector<WordEncoder> encoders(std::clamp(threads, 1U, kMaxThreads), WordEncoder(tokenizer));
  std::vector<std::string> batch;
  uint64_t first_of_batch = 0;
  uint64_t batch_bytes = 0;
  const auto write_batch = [&] {
    const auto ids = encode_documents(tokenizer, encoders, batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      (survey.split.is_val(first_of_batch + i) ? val : train).append(batch[i], ids[i]);
      report(progress, "tokenizing", train.manifest.text_bytes + val.manifest.text_bytes, survey.bytes);
    }
    first_of_batch += batch.size();
    batch.clear();
    batch_bytes = 0;
  };

  DocumentReader reader = corpus.read(survey.sizes);
  ContentHash hash;
  std::string document;
  for (uint64_t index = 0; reader.next(document).take() && index < survey.split.documents(); ++index) {
    hash.add(document);
    batch_bytes += document.size();
    batch.push_back(std::move(document));
    if (batch_bytes >= kBatchBytesPerThread * encoders.size()) write_batch();
  }
  write_batch();
  if (hash.hex() != survey.content_sha256) {
    throw UserError(fmt::format("data.corpus = \"{}\" changed while it was read; try again", corpus.source()));
  }
  train.finish();
  val.finish();
  Manifest manifest;
  manifest.content_sha256 = survey.content_sha256;
  manifest.tokenizer_sha256 = sha256_hex(tokenizer.model());
  manifest.vocab = tokenizer.vocab();
  manifest.train = train.manifest;
  manifest.val = val.manifest;
  manifest.train_unigram_entropy = unigram_entropy(train.shard.counts());
  return manifest;
}

// Opens the folder if it is complete and holds this corpus.
Result<PreparedCorpus> find_same(const fs::path& folder, const std::string& content_sha256) {
  auto found = TRY(open_prepared(folder));
  if (found.manifest.content_sha256 != content_sha256) {
    return Error{fmt::format("{} belongs to another corpus", folder.string())};
  }
  return found;
}

}  // namespace

std::string train_corpus_tokenizer(const DataConfig& data, const PrepareProgress& progress) {
  check_fraction(data);
  const Corpus corpus = Corpus::open(data);
  const Survey survey = survey_with_progress(data, corpus, progress);
  return train_on_training_documents(corpus, survey, data.vocab, progress).model();
}

int64_t vocab_for_text(const DataConfig& data, const PrepareProgress& progress) {
  check_fraction(data);
  const Corpus corpus = Corpus::open(data);
  const Survey survey = survey_with_progress(data, corpus, progress);
  TrainingDocuments documents(corpus, survey, "choosing the vocabulary", progress);
  return fitting_vocab(std::ref(documents), survey.bytes, data.vocab).take();
}

PreparedCorpus prepare_corpus(const DataConfig& data, const fs::path& cache_root, const PrepareProgress& progress,
                              unsigned threads) {
  check_fraction(data);
  std::optional<Tokenizer> tokenizer = load_given_tokenizer(data);
  const Corpus corpus = Corpus::open(data);
  const Survey survey = survey_with_progress(data, corpus, progress);
  const auto with_count = [&](PreparedCorpus prepared) {
    prepared.invalid = survey.invalid;
    return prepared;
  };
  const fs::path target = cache_root / "prepared" / cache_key(data, survey, tokenizer);
  if (auto found = find_same(target, survey.content_sha256)) return with_count(found.value());

  AtomicFolder work = AtomicFolder::create(target, [&] {
                        report(progress, "waiting for another process that is preparing this corpus", 0, 0);
                      }).take();
  // Another process may have made it while we waited. A damaged folder is made again: it is only a cache.
  const auto found = find_same(target, survey.content_sha256);
  if (found) return with_count(found.value());
  if (std::error_code code; fs::exists(target, code)) {
    log_warn("preparing the corpus again: {}", found.error().message);
  }
  AtomicFolder::remove_abandoned(target.parent_path());
  if (!tokenizer) tokenizer = train_on_training_documents(corpus, survey, data.vocab, progress);
  write_file_atomically(work.path() / "tokenizer.model", tokenizer->model()).take();
  // Shown by `thinpipe data list`; not part of the identity.
  write_file_atomically(work.path() / "source.txt", data.corpus + '\n').take();
  Manifest manifest = encode_corpus(corpus, survey, *tokenizer, work.path(), progress, threads);
  manifest.val_fraction = data.val_fraction;
  write_file_atomically(work.path() / "manifest.json", manifest_text(manifest)).take();
  remove_tree(target).take();
  work.commit().take();
  return with_count(open_prepared(target).take());
}

std::string invalid_line(const DataConfig& data, uint64_t count) {
  if (count == 0) return "";
  return fmt::format("note: {} invalid sequence(s) of bytes in the text were {} (data.invalid)", count,
                     data.invalid == Invalid::kReplace ? "replaced by U+FFFD" : "skipped");
}

std::string PrepareLine::line(uint64_t done_bytes, uint64_t total_bytes) const {
  std::string text = phase_;
  const auto megabytes = [](uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  if (total_bytes > 0) {
    text += fmt::format(" {:.1f} of {:.1f} MB", megabytes(done_bytes), megabytes(total_bytes));
  } else if (done_bytes > 0) {
    text += fmt::format(" {:.1f} MB", megabytes(done_bytes));
  }
  const Duration took = clock_.now() - phase_start_;
  if (took < kLeastMeasured || done_bytes <= first_bytes_) return text;
  const double rate = megabytes(done_bytes - first_bytes_) / seconds(took);
  text += fmt::format(", {:.1f} MB/s", rate);
  if (total_bytes > done_bytes) {
    const auto left = std::chrono::seconds(static_cast<int64_t>(megabytes(total_bytes - done_bytes) / rate) + 1);
    text += fmt::format(", {} left", format_duration(left));
  }
  return text;
}

void PrepareLine::operator()(std::string_view phase, uint64_t done_bytes, uint64_t total_bytes) {
  const bool begins = phase != phase_;
  if (begins) {
    phase_ = phase;
    first_bytes_ = done_bytes;
    phase_start_ = clock_.now();
  } else if (!out_.is_due()) {
    return;
  }
  out_.show("data: " + (begins && !live_ ? phase_ : line(done_bytes, total_bytes)));
}

}  // namespace thinpipe
