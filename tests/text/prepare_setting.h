// A small corpus of sixty documents, and a cache to prepare it in.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

}  // namespace thinpipe::test
