// manifest.json of a prepared corpus: what was made from what. Its SHA-256 is the corpus's identity, so it holds
// nothing that depends on the machine: no path, no time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace thinpipe {

// One of the two token shards.
struct SplitManifest {
  uint64_t documents = 0;
  uint64_t text_bytes = 0;  // UTF-8 bytes before tokenisation: what bits per byte divides by
  uint64_t tokens = 0;
  std::string sha256;  // of the .bin file
};

struct Manifest {
  std::string content_sha256;  // of the documents (ContentHash)
  std::string tokenizer_sha256;
  int64_t vocab = 0;
  double val_fraction = 0;
  SplitManifest train;
  SplitManifest val;
  double train_unigram_entropy = 0;  // nats per token, to 1e-6: the loss of a model that knows only frequencies
};

// JSON with sorted keys: the same manifest is the same bytes.
std::string manifest_text(const Manifest& manifest);
// Exactly what manifest_text writes: no key more or less, every value of its type. `name` is what errors call it.
Result<Manifest> parse_manifest(std::string_view text, const std::string& name);

}  // namespace thinpipe
