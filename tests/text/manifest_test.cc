#include "text/manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"

namespace thinpipe {
namespace {

TEST(Manifest, ReadsBackWhatItWrites) {
  Manifest manifest;
  manifest.content_sha256 = manifest.tokenizer_sha256 = manifest.train.sha256 = manifest.val.sha256 = sha256_hex("x");
  manifest.vocab = 4096;
  manifest.val_fraction = 0.05;
  manifest.train.tokens = 123;
  manifest.val.text_bytes = uint64_t{1} << 40;
  manifest.train_unigram_entropy = 6.25;
  const std::string text = manifest_text(manifest);
  const auto parsed = parse_manifest(text, "m.json");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(manifest_text(parsed.value()), text);
}

TEST(Manifest, RefusesAnyKeyMissingAddedOrOfAnotherType) {
  Manifest manifest;
  manifest.content_sha256 = manifest.tokenizer_sha256 = manifest.train.sha256 = manifest.val.sha256 = sha256_hex("x");
  manifest.vocab = 4096;
  const auto good = nlohmann::json::parse(manifest_text(manifest));
  ASSERT_TRUE(parse_manifest(good.dump(), "m.json").ok());
  const auto refused = [](const nlohmann::json& json) { return !parse_manifest(json.dump(), "m.json").ok(); };
  for (const auto& [key, value] : good.items()) {
    auto changed = good;
    changed.erase(key);
    EXPECT_TRUE(refused(changed)) << key;
    for (const nlohmann::json& wrong : {nlohmann::json(nullptr), nlohmann::json("x"), nlohmann::json(-1),
                                        nlohmann::json::array(), nlohmann::json::object()}) {
      changed = good;
      changed[key] = wrong;
      const bool fits = wrong == -1 && value.is_number_float();
      EXPECT_EQ(refused(changed), !fits) << key << wrong;
    }
    changed = good;
    changed[key + "2"] = value;
    EXPECT_TRUE(refused(changed)) << key;
  }
  auto inner = good;
  inner["val"].erase("tokens");
  EXPECT_TRUE(refused(inner));
  for (const nlohmann::json& count : {nlohmann::json(-1), nlohmann::json(1.5), nlohmann::json("1")}) {
    inner = good;
    inner["val"]["tokens"] = count;
    EXPECT_TRUE(refused(inner)) << count;
  }
  for (const char* text : {"", "{}", "[]", "nonsense", "{\"format\": 1}"}) {
    EXPECT_EQ(parse_manifest(text, "m.json").error().message, "m.json: not a manifest of a prepared corpus, version 1");
  }
}

}  // namespace
}  // namespace thinpipe
