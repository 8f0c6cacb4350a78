#include "text/manifest.h"

#include <cmath>
#include <nlohmann/json.hpp>

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

// Takes fields out of one object; the first that is missing or of another type makes it fail, as does one left over.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object), ok_(object.is_object()) {}

  uint64_t count(const char* key) {
    const Json* value = take(key);
    return check(value != nullptr && value->is_number_unsigned()) ? value->get<uint64_t>() : 0;
  }
  double number(const char* key) {
    const Json* value = take(key);
    return check(value != nullptr && value->is_number() && std::isfinite(value->get<double>())) ? value->get<double>()
                                                                                                : 0;
  }
  std::string text(const char* key) {
    const Json* value = take(key);
    return check(value != nullptr && value->is_string()) ? value->get<std::string>() : std::string();
  }
  std::string sha256(const char* key) {
    std::string value = text(key);
    check(value.size() == 64 && value.find_first_not_of("0123456789abcdef") == std::string::npos);
    return value;
  }
  SplitManifest split(const char* key) {
    const Json* value = take(key);
    if (!check(value != nullptr)) return {};
    Fields fields(*value);
    SplitManifest split{fields.count("documents"), fields.count("text_bytes"), fields.count("tokens"),
                        fields.sha256("sha256")};
    check(fields.complete());
    return split;
  }
  bool complete() const { return ok_ && taken_ == object_.size(); }

 private:
  const Json* take(const char* key) {
    if (!ok_) return nullptr;
    const auto found = object_.find(key);
    ++taken_;
    return found == object_.end() ? nullptr : &*found;
  }
  bool check(bool holds) { return ok_ = ok_ && holds; }

  const Json& object_;
  bool ok_;
  size_t taken_ = 0;
};

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
  Fields fields(object);
  const bool ours = fields.text("format") == kFormat && fields.count("version") == static_cast<uint64_t>(kVersion);
  Manifest manifest;
  manifest.content_sha256 = fields.sha256("content_sha256");
  manifest.tokenizer_sha256 = fields.sha256("tokenizer_sha256");
  const uint64_t vocab = fields.count("vocab");
  manifest.vocab = static_cast<int64_t>(vocab);
  manifest.val_fraction = fields.number("val_fraction");
  manifest.train = fields.split("train");
  manifest.val = fields.split("val");
  manifest.train_unigram_entropy = fields.number("train_unigram_entropy_nats");
  if (!ours || !fields.complete() || vocab == 0 || vocab > INT32_MAX) {
    return Error{fmt::format("{}: not a manifest of a prepared corpus, version {}", name, kVersion)};
  }
  return manifest;
}

}  // namespace thinpipe
