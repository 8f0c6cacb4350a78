// Which documents are kept for validation, and the first pass over a corpus, which decides it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "text/corpus.h"

namespace thinpipe {

// Document i is a validation document if its draw, a function of i alone, is below the fraction. If that leaves one
// side empty, the document with the smallest (or greatest) draw moves to it.
class DocumentSplit {
 public:
  explicit DocumentSplit(double val_fraction) : val_fraction_(val_fraction) {}

  // Counts document number documents(), in order.
  void add();
  uint64_t documents() const { return documents_; }
  // For any index below documents(), after all have been added. With fewer than two documents one side is empty.
  bool is_val(uint64_t index) const;

 private:
  double val_fraction_;
  uint64_t documents_ = 0;
  uint64_t val_documents_ = 0;
  uint64_t smallest_ = 0;
  uint64_t greatest_ = 0;
};

// The findings of one pass over a corpus.
struct Survey {
  DocumentSizes sizes;  // how the documents are cut; later passes must use the same
  DocumentSplit split;
  std::string content_sha256;
  uint64_t bytes = 0;
  uint64_t invalid = 0;  // sequences of bytes that were replaced or skipped
  bool blank = true;     // nothing but white space
};

// Reads and checks the whole corpus. If it has fewer than 20 documents, its text files (and a single .jsonl document)
// are cut into smaller ones, so that the validation fraction can be met. Throws UserError if there is no text, or too
// little to cut in two. `on_document` gets the number of bytes read so far.
Survey survey_corpus(const Corpus& corpus, double val_fraction, const std::function<void(uint64_t)>& on_document);

}  // namespace thinpipe
