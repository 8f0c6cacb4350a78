// Where text enters: reads the source named by data.corpus as a stream of documents, and checks and cuts text by the
// rules of UTF-8. Only one document is in memory at a time, so a corpus may be far larger than the machine's memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "text/text_input.h"

namespace thinpipe {

// The longest piece that cut_length() takes if it finds no line end.
size_t cut_limit(size_t target);

// How many bytes of non-empty `text` form the next piece: up to and including the first line end at or after `target`
// bytes; if there is none within cut_limit(target) bytes, up to the last character that fits. At least one byte. The
// text may be shorter than the limit only if it is the end of the document.
size_t cut_length(std::string_view text, size_t target);

// Maximum document length before cut_length() cuts it; each part becomes a document.
struct DocumentSizes {
  size_t text_bytes = 32 << 10;    // for a plain text file, which is one long text
  size_t jsonl_bytes = 256 << 10;  // for a .jsonl line; bounds the tokenizer's memory
};

// Reads the documents of one Corpus in order. One thread at a time.
class DocumentReader {
 public:
  ~DocumentReader();
  DocumentReader(DocumentReader&&) noexcept;

  // Fills `document` (valid UTF-8, not empty) and returns true, or returns false at the end. An error names the file
  // and the line, and ends the reading.
  Result<bool> next(std::string& document);

  // How many invalid sequences of bytes were replaced or skipped so far.
  uint64_t invalid_count() const;

 private:
  friend class Corpus;
  struct State;
  explicit DocumentReader(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

class Corpus {
 public:
  // "kjv" (one document per chapter), or the path of a text file, a .jsonl file (one document per line, in
  // form.field), or a folder of both, read in the order of their paths, without hidden files. Throws UserError if
  // there is nothing to read; the message calls the source `named`. Contents are checked when they are read.
  static Corpus open(const std::string& source, std::string_view named = "data.corpus", TextForm form = {});
  static Corpus open(const DataConfig& data);

  // Any number of readers may read at the same time, each from the start.
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
  TextForm form_;
  bool by_config_ = true;  // messages may name keys of the config
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
