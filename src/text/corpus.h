// Where text enters: a source named by data.corpus, read as a stream of documents. Only one document is in memory at a
// time, so a corpus may be far larger than the machine's memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"

namespace thinpipe {

// How long a document may get before it is cut (utf8.h says where); a later part is a document of its own.
struct DocumentSizes {
  size_t text_bytes = 32 << 10;    // of a plain text file, which has no documents of its own
  size_t jsonl_bytes = 256 << 10;  // of a .jsonl line; bounds what the tokenizer must hold at once
};

// Reads the documents of one Corpus in order; one thread.
class DocumentReader {
 public:
  ~DocumentReader();
  DocumentReader(DocumentReader&&) noexcept;

  // Fills `document` (valid UTF-8, not empty) and returns true, or returns false at the end. An error names the file
  // and the line; the reader is then at its end.
  Result<bool> next(std::string& document);

 private:
  friend class Corpus;
  struct State;
  explicit DocumentReader(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

class Corpus {
 public:
  // "kjv" (one document per chapter), or the path of a UTF-8 text file, a .jsonl file (one document per line, its field
  // "text"), or a folder of both, taken in the order of their paths without hidden ones. Throws UserError when there is
  // nothing to read there, in which `named` is what the source was given as; what is in the files is checked when it is
  // read.
  static Corpus open(const std::string& source, std::string_view named = "data.corpus");

  // Any number may read at once, each from the start.
  DocumentReader read(DocumentSizes sizes = {}) const;

  const std::string& source() const { return source_; }

 private:
  enum class Kind { kText, kJsonl, kChapters };
  struct File {
    std::filesystem::path path;
    Kind kind;
  };
  friend class DocumentReader;

  static std::vector<File> list_folder(const std::filesystem::path& folder, std::string_view named);
  static Kind kind_of(const std::filesystem::path& path);

  std::string source_;
  std::vector<File> files_;
};

// The content hash of a corpus: SHA-256 over every document as its length (8 bytes, little-endian) and its bytes. It
// does not depend on names, paths or on how the documents were stored.
class ContentHash {
 public:
  void add(std::string_view document);
  std::string hex() { return hash_.hex(); }

 private:
  Sha256 hash_;
};

}  // namespace thinpipe
