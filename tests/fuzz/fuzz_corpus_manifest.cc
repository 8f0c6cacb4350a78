// Parses any bytes as the manifest of a prepared corpus: refuses them in one line, or accepts a possible manifest that
// is written as the same bytes.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "text/prepared.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = parse_manifest(text, "fuzz.json");
  if (!parsed) {
    TP_CHECK(parsed.error().message.find('\n') == std::string::npos, "not one line: {}", parsed.error().message);
    return 0;
  }
  const Manifest& manifest = parsed.value();
  TP_CHECK(manifest.vocab > 0 && manifest.vocab <= INT32_MAX, "a vocabulary of {}", manifest.vocab);
  TP_CHECK(std::isfinite(manifest.val_fraction) && std::isfinite(manifest.train_unigram_entropy), "not finite");
  for (const auto& hash :
       {manifest.content_sha256, manifest.tokenizer_sha256, manifest.train.sha256, manifest.val.sha256}) {
    TP_CHECK(hash.size() == 64 && hash.find_first_not_of("0123456789abcdef") == std::string::npos, "hash {}", hash);
  }
  TP_CHECK(manifest_text(manifest) == text, "accepted what it would not write");
  return 0;
}
