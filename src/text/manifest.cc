#include "text/manifest.h"

#include <nlohmann/json.hpp>

#include "text/exact_fields.h"

namespace thinpipe {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "thinpipe corpus";
constexpr int64_t kVersion = 1;

Json to_json(const SplitManifest& split) {
  return {{"documents", split.documents},
          {"text_bytes", split.text_bytes},
          {"tokens", split.tokens},
          {"sha256", split.sha256}};
}

SplitManifest split_from(ExactFields& fields) {
  return {fields.count("documents"), fields.count("text_bytes"), fields.count("tokens"), fields.sha256("sha256")};
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  const Json object = {{"format", kFormat},
                       {"version", kVersion},
                       {"content_sha256", manifest.content_sha256},
                       {"tokenizer_sha256", manifest.tokenizer_sha256},
                       {"vocab", static_cast<uint64_t>(manifest.vocab)},
                       {"val_fraction", manifest.val_fraction},
                       {"train", to_json(manifest.train)},
                       {"val", to_json(manifest.val)},
                       {"train_unigram_entropy_nats", manifest.train_unigram_entropy}};
  return object.dump(2) + '\n';
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& name) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  ExactFields fields(object);
  const bool ours = fields.text("format") == kFormat && fields.count("version") == static_cast<uint64_t>(kVersion);
  Manifest manifest;
  manifest.content_sha256 = fields.sha256("content_sha256");
  manifest.tokenizer_sha256 = fields.sha256("tokenizer_sha256");
  const uint64_t vocab = fields.count("vocab");
  manifest.vocab = static_cast<int64_t>(vocab);
  manifest.val_fraction = fields.number("val_fraction");
  manifest.train = fields.inner("train", split_from);
  manifest.val = fields.inner("val", split_from);
  manifest.train_unigram_entropy = fields.number("train_unigram_entropy_nats");
  if (!ours || !fields.complete() || vocab == 0 || vocab > INT32_MAX) {
    return Error{fmt::format("{}: not a manifest of a prepared corpus, version {}", name, kVersion)};
  }
  return manifest;
}

}  // namespace thinpipe
