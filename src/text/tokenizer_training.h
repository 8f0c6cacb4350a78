// Trains the BPE tokenizer of a corpus from its training documents.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace thinpipe {

// Fills the string with the next document and returns true; returns false at the end.
using DocumentSource = std::function<Result<bool>(std::string&)>;

// The bytes of a .model with exactly `vocab` pieces: unknown 0, begin 1, end 2, the 256 bytes, then merges and
// characters. A corpus of more than 16 MiB is sampled evenly (corpus_bytes may be too high). The sample ends early once
// training on its distinct words would take more than about 400 MB of memory. The same documents give the same bytes.
// Throws UserError if `vocab` does not fit the documents; the message says what would fit. A returned error comes from
// the source.
Result<std::string> train_tokenizer(const DocumentSource& documents, uint64_t corpus_bytes, int64_t vocab);

// The vocabulary to train for these documents if the user has chosen none: `wanted` for a text of 100 bytes per piece
// or more, fewer for a smaller one, and always one that train_tokenizer() accepts.
Result<int64_t> fitting_vocab(const DocumentSource& documents, uint64_t corpus_bytes, int64_t wanted);

}  // namespace thinpipe
