// A small corpus of sixty documents, and a cache to prepare it in.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "support/scratch.h"
#include "text/prepare.h"
#include "text/text_files.h"

namespace thinpipe::test {

inline constexpr size_t kDocuments = 60;

inline std::string jsonl(const std::vector<std::string>& texts) {
  std::string lines;
  for (const auto& text : texts) lines += nlohmann::json{{"text", text}}.dump() + "\n";
  return lines;
}

inline std::vector<std::string> sixty_documents() {
  std::vector<std::string> texts;
  for (size_t i = 0; i < kDocuments; ++i) texts.push_back(fmt::format("Document {}.\n", i) + english(8, i));
  return texts;
}

struct Setting {
  ScratchFolder folder;
  DataConfig data;

  explicit Setting(const std::string& content = jsonl(sixty_documents()), const std::string& name = "c.jsonl") {
    write_file(folder / name, content);
    data.corpus = folder / name;
    data.vocab = 400;
    data.val_fraction = 0.2;
  }
  std::filesystem::path cache() const { return folder / "cache"; }
  PreparedCorpus prepare() const { return prepare_corpus(data, cache()); }
  std::string error() const {
    return user_error([&] { prepare(); });
  }
  size_t prepared_entries() const {
    return std::filesystem::exists(cache() / "prepared")
               ? static_cast<size_t>(std::distance(std::filesystem::directory_iterator(cache() / "prepared"), {}))
               : 0;
  }
};

// Makes two copies of a prepared corpus whose ids begin alike. Returns both ids, the smaller first.
inline std::pair<std::string, std::string> make_ids_alike(const PreparedCorpus& corpus,
                                                          const std::filesystem::path& cache) {
  std::map<std::string, Manifest> seen;
  for (Manifest manifest = corpus.manifest;; manifest.val_fraction += 1e-6) {
    const std::string id = sha256_hex(manifest_text(manifest));
    const auto [alike, is_new] = seen.emplace(id.substr(0, 4), manifest);
    if (is_new) continue;
    const std::string other = sha256_hex(manifest_text(alike->second));
    for (const auto& [name, one] : {std::pair{"one", manifest}, std::pair{"other", alike->second}}) {
      std::filesystem::copy(corpus.folder, cache / "prepared" / name);
      write_file(cache / "prepared" / name / "manifest.json", manifest_text(one));
    }
    return std::minmax(id, other);
  }
}

}  // namespace thinpipe::test
