#include "store/manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "store/checkpoint_files.h"

namespace thinpipe {
namespace {

using nlohmann::json;
using test::small_checkpoint;

std::string refusal(const std::string& text) {
  const auto parsed = parse_checkpoint_manifest(text, "m.json");
  if (parsed) return "taken";
  const std::string& message = parsed.error().message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  const std::string prefix = "m.json: not a checkpoint manifest: ";
  EXPECT_TRUE(message.starts_with(prefix)) << message;
  return message.substr(std::min(message.size(), prefix.size()));
}

json good() { return json::parse(manifest_text(small_checkpoint(20).manifest)); }

std::string refusal_with(const std::string& pointer, const json& value) {
  json changed = good();
  changed[json::json_pointer(pointer)] = value;
  return refusal(changed.dump());
}

TEST(CheckpointManifest, ReadsBackWhatItWrites) {
  auto manifest = small_checkpoint(99'999'999, 7).manifest;
  const auto parsed = parse_checkpoint_manifest(manifest_text(manifest), "m.json");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed.value(), manifest);
  manifest.basis_hash.clear();
  EXPECT_TRUE(parse_checkpoint_manifest(manifest_text(manifest), "m.json").ok());
}

TEST(CheckpointManifest, RefusesAKeyMissingAddedOrOfAnotherType) {
  const json all = good();
  for (const auto& [key, value] : all.items()) {
    json changed = good();
    changed.erase(key);
    EXPECT_NE(refusal(changed.dump(2) + "\n"), "taken") << key;
    changed[key] = json::array({nullptr});
    EXPECT_NE(refusal(changed.dump(2) + "\n"), "taken") << key;
  }
  EXPECT_EQ(refusal_with("/note", 1), "damaged: it is not spelled as thinpipe writes it");
  EXPECT_EQ(refusal_with("/files/1/mode", 1), "damaged: it is not spelled as thinpipe writes it");
  EXPECT_EQ(refusal_with("/files/1", 7), "a key is missing or its value is of another type");
}

TEST(CheckpointManifest, RefusesANumberThatIsNotWhole) {
  for (const char* key : {"/step", "/generation", "/basis_version", "/files/0/bytes"}) {
    for (const double value : {1.0, 1e110, -0.5}) {
      EXPECT_EQ(refusal_with(key, value), "a key is missing or its value is of another type") << key << " " << value;
    }
  }
}

TEST(CheckpointManifest, RefusesEveryValueThatCannotBe) {
  EXPECT_EQ(refusal_with("/format", "zip"), "its format is not \"thinpipe checkpoint 2\"");
  EXPECT_EQ(refusal_with("/run", ""), "run needs a text of 1 to 200 bytes");
  EXPECT_EQ(refusal_with("/step", -1), "step is -1, needs a number from 0 to 99999999");
  EXPECT_EQ(refusal_with("/step", 100'000'000), "step is 100000000, needs a number from 0 to 99999999");
  EXPECT_NE(refusal_with("/generation", 1.5), "taken");
  EXPECT_EQ(refusal_with("/basis_version", -1), "basis_version needs a number from 0 on");
  EXPECT_EQ(refusal_with("/corpus_id", std::string(64, 'A')), "corpus_id needs 64 lower-case hex digits");
  EXPECT_EQ(refusal_with("/basis_hash", "ab"), "basis_hash needs 64 lower-case hex digits or an empty text");
  EXPECT_EQ(refusal_with("/files", json::array()), "files needs at least one entry");
  EXPECT_EQ(refusal_with("/files/1/sha256", "x"), "sha256 of unit-1 needs 64 lower-case hex digits");
  EXPECT_EQ(refusal_with("/files/1/unit", "unit-0"), "unit \"unit-0\" stands twice in files");
}

TEST(CheckpointManifest, RefusesUnitsThatCouldLeadOutOfTheFolder) {
  for (const char* name : {"", ".", "..", ".hidden", "../x", "a/b", "/etc/passwd", "A", "a b", "a\n", "a.b"}) {
    EXPECT_FALSE(is_unit_name(name)) << name;
    EXPECT_NE(refusal_with("/files/0/unit", name).find("needs a plain name"), std::string::npos) << name;
  }
  EXPECT_FALSE(is_unit_name(std::string(61, 'a')));
  EXPECT_TRUE(is_unit_name("block-012"));
}

TEST(CheckpointManifest, RefusesWhatIsNoJsonOrSpelledOtherwise) {
  const std::string text = manifest_text(small_checkpoint(20).manifest);
  for (const std::string& bad : {std::string(), std::string("{"), std::string("\xff"), text + "}"}) {
    EXPECT_EQ(refusal(bad), "is not valid JSON") << bad;
  }
  std::string twice = text;
  twice.insert(1, "\n  \"step\": 4,");
  for (const std::string& other : {text + " ", good().dump(), twice}) {
    EXPECT_EQ(refusal(other), "damaged: it is not spelled as thinpipe writes it");
  }
  EXPECT_EQ(refusal(std::string((4 << 20) + 1, ' ')), "has 4194305 bytes, at most 4194304 are read");
  EXPECT_NE(refusal(std::string(1 << 20, '[')), "taken");  // neither stack nor time
  const std::string nested = std::string(500'000, '[') + std::string(500'000, ']');
  EXPECT_NE(refusal("{\"format\": " + nested + "}"), "taken");
  EXPECT_NE(refusal("[]"), "taken");
}

TEST(CheckpointManifest, NoticesEveryFlippedBitAndEveryTruncation) {
  const std::string text = manifest_text(small_checkpoint(20).manifest);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    EXPECT_NE(refusal(changed), "taken") << i;
    EXPECT_NE(refusal(text.substr(0, i)), "taken") << i;
  }
}

}  // namespace
}  // namespace thinpipe
