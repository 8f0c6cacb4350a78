#include "text/split.h"

#include <algorithm>

#include "base/rng.h"

namespace thinpipe {
namespace {

constexpr uint64_t kSplitSeed = 20240520;
constexpr uint64_t kFewDocuments = 20;
// Twice as many, because documents are cut at the line end after the target.
constexpr uint64_t kFinerDocuments = 2 * kFewDocuments;

double draw(uint64_t index) {
  static const CounterRng draws(kSplitSeed, "validation split");
  return draws.uniform(index);
}

Survey read_through(const Corpus& corpus, DocumentSizes sizes, double val_fraction,
                    const std::function<void(uint64_t)>& on_document) {
  Survey survey{sizes, DocumentSplit(val_fraction), {}};
  DocumentReader reader = corpus.read(sizes);
  ContentHash hash;
  std::string document;
  while (reader.next(document).take()) {
    hash.add(document);
    survey.split.add();
    survey.bytes += document.size();
    survey.blank = survey.blank && document.find_first_not_of(" \t\r\n\v\f") == std::string::npos;
    on_document(survey.bytes);
  }
  survey.content_sha256 = hash.hex();
  survey.invalid = reader.invalid_count();
  return survey;
}

}  // namespace

void DocumentSplit::add() {
  const uint64_t index = documents_++;
  if (draw(index) < val_fraction_) ++val_documents_;
  if (draw(index) < draw(smallest_)) smallest_ = index;
  if (draw(index) > draw(greatest_)) greatest_ = index;
}

bool DocumentSplit::is_val(uint64_t index) const {
  if (val_documents_ == 0) return index == smallest_;
  if (val_documents_ == documents_) return index != greatest_;
  return draw(index) < val_fraction_;
}

Survey survey_corpus(const Corpus& corpus, double val_fraction, const std::function<void(uint64_t)>& on_document) {
  Survey survey = read_through(corpus, {}, val_fraction, on_document);
  if (survey.blank) {
    throw UserError(fmt::format("data.corpus = \"{}\" has no text{}: give a larger corpus, or \"kjv\"", corpus.source(),
                                survey.bytes == 0 ? "" : " but white space"));
  }
  if (survey.split.documents() < kFewDocuments) {
    DocumentSizes finer;
    const size_t piece = std::max<size_t>(1, survey.bytes / kFinerDocuments);
    finer.text_bytes = std::min(finer.text_bytes, piece);
    if (survey.split.documents() == 1) finer.jsonl_bytes = std::min(finer.jsonl_bytes, piece);
    survey = read_through(corpus, finer, val_fraction, on_document);
  }
  if (survey.split.documents() < 2) {
    throw UserError(
        fmt::format("data.corpus = \"{}\" has {} bytes of text, too little for a validation split: "
                    "give a larger corpus, or \"kjv\"",
                    corpus.source(), survey.bytes));
  }
  return survey;
}

}  // namespace thinpipe
