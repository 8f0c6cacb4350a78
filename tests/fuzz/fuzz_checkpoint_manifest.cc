// Parses any bytes as a checkpoint manifest: refuses them in one line, or accepts a manifest that is written unchanged.
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "store/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto manifest = parse_checkpoint_manifest(text, "fuzz.json");
  if (!manifest) {
    TP_CHECK(manifest.error().message.find('\n') == std::string::npos, "not one line: {}", manifest.error().message);
    return 0;
  }
  TP_CHECK(manifest_text(manifest.value()) == text, "reads back otherwise");
  for (const auto& file : manifest.value().files) {
    TP_CHECK(is_unit_name(file.unit) && is_sha256_hex(file.sha256), "a file that cannot be: {}", file.unit);
  }
  return 0;
}
