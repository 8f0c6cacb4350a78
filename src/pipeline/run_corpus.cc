#include "pipeline/run_corpus.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "base/files.h"
#include "base/result.h"
#include "text/prepared.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr size_t kIdLength = 64;

Status keep(const fs::path& path, const std::string& bytes) {
  if (std::error_code ignored; fs::exists(path, ignored)) return {};
  return write_file_atomically(path, bytes);
}

// Empty for a run that was started before the id was saved.
std::optional<std::string> kept_id(const fs::path& run_folder) {
  const auto text = read_file(run_folder / "corpus_id");
  if (!text || text.value().size() < kIdLength) return std::nullopt;
  return text.value().substr(0, kIdLength);
}

bool is_the_runs(const fs::path& run_folder, const PreparedCorpus& corpus) {
  if (const auto id = kept_id(run_folder)) return *id == corpus.id;
  const auto kept = read_file(run_folder / "tokenizer.model");
  const auto found = read_file(corpus.tokenizer);
  return !kept || !found || kept.value() == found.value();
}

}  // namespace

Status keep_corpus(const fs::path& run_folder, const PreparedCorpus& corpus) {
  const auto model = TRY(read_file(corpus.tokenizer));
  TRY(keep(run_folder / "tokenizer.model", model));
  return keep(run_folder / "corpus_id", corpus.id + "\n");
}

PreparedCorpus corpus_of_run(const fs::path& run_folder, const DataConfig& data, const fs::path& cache_root,
                             const PrepareProgress& progress) {
  // The id says which tokens the run is trained on; the source may have moved or grown since.
  if (const auto id = kept_id(run_folder)) {
    if (auto corpus = prepared_with_id(*id, cache_root)) return std::move(*corpus);
  }
  auto corpus = prepare_corpus(data, cache_root, progress);
  if (!is_the_runs(run_folder, corpus)) {
    throw UserError(
        fmt::format("data.corpus = \"{}\": is not the text that this run started with, and the prepared copy of that "
                    "one is gone; restore the text, or give another where the command takes one",
                    data.corpus));
  }
  return corpus;
}

}  // namespace thinpipe
