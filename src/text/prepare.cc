#include "text/prepare.h"

#include <chrono>
#include <optional>

#include "base/files.h"
#include "base/log.h"
#include "base/sha256.h"
#include "text/corpus.h"
#include "text/document_split.h"
#include "text/encode_corpus.h"
#include "text/preparation_state.h"
#include "text/token_shard.h"
#include "text/tokenizer.h"
#include "text/tokenizer_training.h"
#include "text/work_folder.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

// Raised whenever the same settings and text would give other files: split, cutting, tokenizer training, formats.
constexpr int kPreparationVersion = 1;
// What was interrupted so long ago, for whatever corpus, is removed when the next one is made.
constexpr auto kUnfinishedKeptFor = std::chrono::days(14);

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

Tokenizer train_on_training_documents(const Corpus& corpus, const Survey& survey, int64_t vocab,
                                      const PrepareProgress& progress) {
  DocumentReader reader = corpus.read(survey.sizes);
  uint64_t index = 0;
  uint64_t bytes = 0;
  const DocumentSource next_training_document = [&](std::string& document) -> Result<bool> {
    while (true) {
      auto more = reader.next(document);
      if (!more || !more.value()) return more;
      bytes += document.size();
      report(progress, "training the tokenizer", bytes, survey.bytes);
      // The source may have grown since it was surveyed; the hash of the last pass refuses it, not this one.
      if (index++ < survey.split.documents() && !survey.split.is_val(index - 1)) return true;
    }
  };
  std::string model = train_tokenizer(next_training_document, survey.bytes, vocab).take();
  return Tokenizer::parse(std::move(model), "the tokenizer just trained").take();
}

// One preparation under its lock. The references outlive it.
struct Job {
  const DataConfig& data;
  const Corpus& corpus;
  const Survey& survey;
  const std::string& key;
  const PrepareProgress& progress;
  const PrepareTuning& tuning;
};

// Where it stands: the tokenizer, and how much is in the shards.
struct Begun {
  Tokenizer tokenizer;
  PreparationState state;
};

// What an interrupted process has left, if it is whole and of this preparation.
Result<Begun> find_begun(const Job& job, const fs::path& folder, const std::optional<Tokenizer>& given) {
  auto state = read_preparation_state(folder / "progress.json", job.key);
  if (!state) return state.error();
  auto tokenizer = Tokenizer::load(folder / "tokenizer.model");
  if (!tokenizer) return tokenizer.error();
  const std::string& model = tokenizer.value().model();
  if (sha256_hex(model) != state.value().tokenizer_sha256 || (given && given->model() != model)) {
    return Error{fmt::format("{} is not the one the preparation began with", (folder / "tokenizer.model").string())};
  }
  return Begun{std::move(tokenizer.value()), std::move(state.value())};
}

Begun begin(const Job& job, const WorkFolder& work, std::optional<Tokenizer> given) {
  work.clear_except({}).take();
  Tokenizer tokenizer =
      given ? std::move(*given) : train_on_training_documents(job.corpus, job.survey, job.data.vocab, job.progress);
  PreparationState state{job.key, sha256_hex(tokenizer.model()), {}, {}};
  write_file_atomically(work.path() / "tokenizer.model", tokenizer.model()).take();
  // For people who look into the cache; no part of the identity.
  write_file_atomically(work.path() / "source.txt", job.data.corpus + '\n').take();
  write_preparation_state(work.path() / "progress.json", state).take();
  return Begun{std::move(tokenizer), std::move(state)};
}

// From there to the manifest.
void complete(const Job& job, WorkFolder& work, const Begun& begun, CorpusEncoder& encoder) {
  if (!encoder.run(job.corpus, job.survey)) {
    work.drop();
    throw UserError(fmt::format("data.corpus = \"{}\" changed while it was read; try again", job.data.corpus));
  }
  Manifest manifest;
  manifest.content_sha256 = job.survey.content_sha256;
  manifest.tokenizer_sha256 = begun.state.tokenizer_sha256;
  manifest.vocab = begun.tokenizer.vocab();
  manifest.val_fraction = job.data.val_fraction;
  encoder.finish(manifest);
  write_file_atomically(work.path() / "manifest.json", manifest_text(manifest)).take();
}

// The folder, unless its name has come to another corpus's files.
Result<PreparedCorpus> find_same(const fs::path& folder, const std::string& content_sha256) {
  auto found = open_prepared(folder);
  if (found && found.value().manifest.content_sha256 != content_sha256) {
    return Error{fmt::format("{} is of another corpus", folder.string())};
  }
  return found;
}

// Leaves a whole prepared corpus in the work folder, going on with what is there.
void make(const Job& job, WorkFolder& work, std::optional<Tokenizer> given) {
  if (find_same(work.path(), job.survey.content_sha256)) return;  // only its name was missing
  if (const auto left = find_begun(job, work.path(), given)) {
    auto encoder =
        CorpusEncoder::open(left.value().tokenizer, work.path(), left.value().state, job.tuning, job.progress);
    if (encoder) return complete(job, work, left.value(), *encoder.value());
    log_warn("preparing from the beginning: {}", encoder.error().message);
  }
  const Begun begun = begin(job, work, std::move(given));
  const auto encoder = CorpusEncoder::open(begun.tokenizer, work.path(), begun.state, job.tuning, job.progress).take();
  complete(job, work, begun, *encoder);
}

Status check_shard(const fs::path& path, const SplitManifest& split) {
  auto shard = TokenShard::open(path);
  if (!shard) return shard.error();
  if (shard.value().size() == split.tokens) return {};
  return Error{
      fmt::format("{} has {} tokens, its manifest says {}", path.string(), shard.value().size(), split.tokens)};
}

}  // namespace

Result<PreparedCorpus> open_prepared(const fs::path& folder) {
  PreparedCorpus corpus;
  corpus.folder = folder;
  corpus.tokenizer = folder / "tokenizer.model";
  corpus.train = folder / "train.bin";
  corpus.val = folder / "val.bin";
  const fs::path manifest_path = folder / "manifest.json";
  auto text = read_file(manifest_path);
  if (!text) return text.error();
  auto manifest = parse_manifest(text.value(), manifest_path.string());
  if (!manifest) return manifest.error();
  corpus.manifest = manifest.value();
  corpus.vocab = corpus.manifest.vocab;
  corpus.id = sha256_hex(text.value());
  auto model = read_file(corpus.tokenizer);
  if (!model) return model.error();
  if (sha256_hex(model.value()) != corpus.manifest.tokenizer_sha256) {
    return Error{fmt::format("{} is not the one its manifest names", corpus.tokenizer.string())};
  }
  if (auto status = check_shard(corpus.train, corpus.manifest.train); !status) return status.error();
  if (auto status = check_shard(corpus.val, corpus.manifest.val); !status) return status.error();
  return corpus;
}

std::string train_corpus_tokenizer(const DataConfig& data, const PrepareProgress& progress) {
  check_fraction(data);
  const Corpus corpus = Corpus::open(data.corpus);
  const Survey survey = survey_with_progress(data, corpus, progress);
  return train_on_training_documents(corpus, survey, data.vocab, progress).model();
}

PreparedCorpus prepare_corpus(const DataConfig& data, const fs::path& cache_root, const PrepareProgress& progress,
                              const PrepareTuning& tuning) {
  check_fraction(data);
  std::optional<Tokenizer> given = load_given_tokenizer(data);
  const Corpus corpus = Corpus::open(data.corpus);
  const Survey survey = survey_with_progress(data, corpus, progress);
  const fs::path parent = cache_root / "prepared";
  const std::string key = cache_key(data, survey, given);
  if (auto found = find_same(parent / key, survey.content_sha256)) return found.value();

  make_directories(parent).take();
  const FileLock lock = FileLock::acquire(lock_of(parent / key), [&] {
                          report(progress, "waiting for another process that prepares this corpus", 0, 0);
                        }).take();
  // It may have been made while we waited. A damaged one is made again: it is a cache.
  const auto found = find_same(parent / key, survey.content_sha256);
  if (found) return found.value();
  if (std::error_code code; fs::exists(parent / key, code)) {
    log_warn("preparing the corpus again: {}", found.error().message);
  }
  remove_unfinished(parent, fs::file_time_type::clock::now() - kUnfinishedKeptFor);
  WorkFolder work = WorkFolder::open(parent / key).take();
  // A text that takes no time to do again is not worth a folder somebody may have to wonder about.
  if (survey.bytes >= tuning.durable_every_bytes) work.keep();
  make({data, corpus, survey, key, progress, tuning}, work, std::move(given));
  // Only now: until the manifest is there, this is what an interrupted preparation goes on from.
  work.clear_except({"manifest.json", "tokenizer.model", "train.bin", "val.bin", "source.txt"}).take();
  work.publish().take();
  return open_prepared(parent / key).take();
}

}  // namespace thinpipe
