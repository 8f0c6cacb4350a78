#include "text/prepare.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <span>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "base/sha256.h"
#include "text/corpus.h"
#include "text/document_split.h"
#include "text/token_shard.h"
#include "text/tokenizer.h"
#include "text/tokenizer_training.h"
#include "text/work_folder.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

// Raised whenever the same settings and text would give other files: split, cutting, tokenizer training, formats.
constexpr int kPreparationVersion = 1;

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

std::string cache_key(const DataConfig& data, const Survey& survey, const std::optional<Tokenizer>& given) {
  const std::string tokenizer = given ? sha256_hex(given->model()) : "trained";
  return sha256_hex(fmt::format("thinpipe prepared corpus {}\n{}\n{}\n{}\n{}\n", kPreparationVersion,
                                survey.content_sha256, tokenizer, data.vocab, data.val_fraction))
      .substr(0, 32);
}

// A stream, not a mapping: pages of a mapped file would count as this process's memory.
std::string sha256_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0) {
    hash.update({buffer.data(), static_cast<size_t>(file.gcount())});
  }
  if (!file.eof()) throw UserError(fmt::format("cannot read back {}", path.string()));
  return hash.hex();
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

// One split on its way to the disk.
struct SplitWriter {
  fs::path path;
  TokenShardWriter shard;
  SplitManifest manifest;

  SplitWriter(const fs::path& file, int64_t vocab) : path(file), shard(TokenShardWriter::create(file, vocab).take()) {}

  void add(size_t text_bytes, std::span<const int32_t> tokens) {
    manifest.documents += 1;
    manifest.text_bytes += text_bytes;
    manifest.tokens += tokens.size();
    shard.append(tokens).take();
  }
  SplitManifest finish() {
    shard.finish().take();
    manifest.sha256 = sha256_of_file(path);
    return manifest;
  }
};

// -sum p ln p over the tokens that occur. Rounded, so that the last bit of some libm's log is not part of an identity.
double unigram_entropy(std::span<const uint64_t> counts, uint64_t total) {
  double entropy = 0;
  for (const uint64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    entropy -= share * std::log(share);
  }
  return std::round(entropy * 1e6) / 1e6;
}

// Writes both shards into `folder` and fills the manifest's part about them.
void encode_corpus(const Corpus& corpus, const Survey& survey, const Tokenizer& tokenizer, const fs::path& folder,
                   Manifest& manifest, const PrepareProgress& progress) {
  SplitWriter train(folder / "train.bin", tokenizer.vocab());
  SplitWriter val(folder / "val.bin", tokenizer.vocab());
  std::vector<uint64_t> counts(static_cast<size_t>(tokenizer.vocab()));
  DocumentReader reader = corpus.read(survey.sizes);
  ContentHash hash;
  std::string document;
  uint64_t bytes = 0;
  for (uint64_t index = 0; reader.next(document).take() && index < survey.split.documents(); ++index) {
    hash.add(document);
    std::vector<int32_t> tokens = tokenizer.encode(document);
    tokens.insert(tokens.begin(), tokenizer.bos());
    const bool is_val = survey.split.is_val(index);
    (is_val ? val : train).add(document.size(), tokens);
    if (!is_val) {
      for (const int32_t token : tokens) ++counts[static_cast<size_t>(token)];
    }
    bytes += document.size();
    report(progress, "tokenizing", bytes, survey.bytes);
  }
  if (hash.hex() != survey.content_sha256) {
    throw UserError(fmt::format("data.corpus = \"{}\" changed while it was read; try again", corpus.source()));
  }
  manifest.train = train.finish();
  manifest.val = val.finish();
  manifest.train_unigram_entropy = unigram_entropy(counts, manifest.train.tokens);
}

void build(const DataConfig& data, const Corpus& corpus, const Survey& survey, const Tokenizer& tokenizer,
           const fs::path& folder, const PrepareProgress& progress) {
  Manifest manifest;
  manifest.content_sha256 = survey.content_sha256;
  manifest.tokenizer_sha256 = sha256_hex(tokenizer.model());
  manifest.vocab = tokenizer.vocab();
  manifest.val_fraction = data.val_fraction;
  write_file_atomically(folder / "tokenizer.model", tokenizer.model()).take();
  encode_corpus(corpus, survey, tokenizer, folder, manifest, progress);
  // For people who look into the cache; no part of the identity.
  write_file_atomically(folder / "source.txt", data.corpus + '\n').take();
  write_file_atomically(folder / "manifest.json", manifest_text(manifest)).take();
}

// The folder, unless its name has come to another corpus's files.
Result<PreparedCorpus> find_prepared(const fs::path& folder, const std::string& content_sha256) {
  auto found = open_prepared(folder);
  if (found && found.value().manifest.content_sha256 != content_sha256) {
    return Error{fmt::format("{} is of another corpus", folder.string())};
  }
  return found;
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

PreparedCorpus prepare_corpus(const DataConfig& data, const fs::path& cache_root, const PrepareProgress& progress) {
  if (!(data.val_fraction >= 0 && data.val_fraction < 1)) {
    throw UserError(fmt::format("data.val_fraction = {} must be at least 0 and below 1", data.val_fraction));
  }
  const std::optional<Tokenizer> given = load_given_tokenizer(data);
  const Corpus corpus = Corpus::open(data.corpus);
  const Survey survey = survey_corpus(corpus, data.val_fraction,
                                      [&](uint64_t bytes) { report(progress, "reading the corpus", bytes, 0); });
  const fs::path parent = cache_root / "prepared";
  const std::string key = cache_key(data, survey, given);
  if (auto found = find_prepared(parent / key, survey.content_sha256)) return found.value();

  make_directories(parent).take();
  const FileLock lock = FileLock::acquire(parent / ("." + key + ".lock"), [&] {
                          report(progress, "waiting for another process that prepares this corpus", 0, 0);
                        }).take();
  // It may have been made while we waited. A damaged one is made again: it is a cache.
  const auto found = find_prepared(parent / key, survey.content_sha256);
  if (found) return found.value();
  if (std::error_code code; fs::exists(parent / key, code)) {
    log_warn("preparing the corpus again: {}", found.error().message);
  }
  WorkFolder work = WorkFolder::create(parent / key).take();
  if (given) {
    build(data, corpus, survey, *given, work.path(), progress);
  } else {
    build(data, corpus, survey, train_on_training_documents(corpus, survey, data.vocab, progress), work.path(),
          progress);
  }
  work.publish().take();
  return open_prepared(parent / key).take();
}

}  // namespace thinpipe
