#include "checkpoint/checkpoint_manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_files.h"

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
  manifest.machine = "Ryzen \xe2\x84\xa2 \"quoted\"\n";
  const std::string text = manifest_text(manifest);
  const auto parsed = parse_checkpoint_manifest(text, "m.json");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed.value(), manifest);
  manifest.basis_hash.clear();
  EXPECT_TRUE(parse_checkpoint_manifest(manifest_text(manifest), "m.json").ok());
}

TEST(CheckpointManifest, RefusesAKeyMissingOrAdded) {
  const json all = good();
  for (const auto& [key, value] : all.items()) {
    json changed = good();
    changed.erase(key);
    EXPECT_EQ(refusal(changed.dump()), "has no key \"" + key + "\"");
  }
  EXPECT_EQ(refusal_with("/note", 1), "has a key \"note\", which is not one of a manifest's");
  EXPECT_EQ(refusal_with("/files/1/mode", 1), "files[1]: has a key \"mode\", which is not one of a manifest's");
  json changed = good();
  changed["files"][0].erase("bytes");
  EXPECT_EQ(refusal(changed.dump()), "files[0]: has no key \"bytes\"");
}

TEST(CheckpointManifest, RefusesEveryValueThatCannotBe) {
  const std::string count = "needs a whole number from 0 to 9223372036854775807";
  const std::string hash = "needs 64 lower-case hex digits";
  EXPECT_EQ(refusal_with("/format", "zip"), "format is \"zip\", needs \"thinpipe checkpoint\"");
  EXPECT_EQ(refusal_with("/version", 2), "version is 2, needs a whole number from 1 to 1");
  EXPECT_EQ(refusal_with("/run", ""), "run is \"\", needs a text of 1 to 200 bytes");
  EXPECT_EQ(refusal_with("/run", 5), "run is 5, needs a text of 1 to 200 bytes");
  EXPECT_EQ(refusal_with("/step", -1), "step is -1, needs a whole number from 0 to 99999999");
  EXPECT_EQ(refusal_with("/step", 100'000'000), "step is 100000000, needs a whole number from 0 to 99999999");
  EXPECT_EQ(refusal_with("/next_sample", 1.5), "next_sample is 1.5, " + count);
  EXPECT_EQ(refusal_with("/next_sample", UINT64_MAX), "next_sample is 18446744073709551615, " + count);
  EXPECT_EQ(refusal_with("/generation", "1"), "generation is \"1\", " + count);
  EXPECT_EQ(refusal_with("/basis_version", nullptr), "basis_version is null, " + count);
  EXPECT_EQ(refusal_with("/config_sha256", std::string(63, 'a')),
            "config_sha256 is \"" + std::string(63, 'a') + "\", " + hash);
  EXPECT_EQ(refusal_with("/corpus_id", std::string(64, 'A')), "corpus_id is \"" + std::string(64, 'A') + "\", " + hash);
  EXPECT_EQ(refusal_with("/corpus_id", ""), "corpus_id is \"\", " + hash);
  EXPECT_EQ(refusal_with("/basis_hash", "ab"), "basis_hash is \"ab\", " + hash + " or an empty text");
  EXPECT_EQ(refusal_with("/machine", json::array()), "machine is a list, needs a text of 0 to 4096 bytes");
  EXPECT_EQ(refusal_with("/cuts", json::array()), "cuts needs to be a list of 1 to 4096 entries");
  EXPECT_EQ(refusal_with("/cuts", "3,1"), "cuts needs to be a list of 1 to 4096 entries");
  EXPECT_EQ(refusal_with("/cuts/1", 0), "cuts[1] is 0, needs a whole number from 1 to 4096");
  EXPECT_EQ(refusal_with("/cuts/2", 1), "files has 2 entries for 3 stages, needs one each");
  EXPECT_EQ(refusal_with("/files", json::object()), "files needs to be a list of 1 to 4096 entries");
  EXPECT_EQ(refusal_with("/files/1", 7), "files[1]: is 7, needs an object");
  EXPECT_EQ(refusal_with("/files/1/bytes", -5), "files[1]: bytes is -5, " + count);
  EXPECT_EQ(refusal_with("/files/1/sha256", "x"), "files[1]: sha256 is \"x\", " + hash);
  EXPECT_EQ(refusal_with("/files/1/name", "stage-0.safetensors"),
            "files[1]: name \"stage-0.safetensors\" stands twice");
}

TEST(CheckpointManifest, RefusesNamesThatAreNotPlain) {
  for (const char* name :
       {"", ".", "..", ".hidden", "../x", "a/b", "/etc/passwd", "A", "a b", "a\n", "manifest.json"}) {
    EXPECT_FALSE(is_checkpoint_file_name(name)) << name;
    EXPECT_NE(refusal_with("/files/0/name", name).find("needs a plain file name"), std::string::npos) << name;
  }
  EXPECT_FALSE(is_checkpoint_file_name(std::string(101, 'a')));
  EXPECT_TRUE(is_checkpoint_file_name("stage-12.safetensors"));
}

TEST(CheckpointManifest, RefusesWhatIsNoJsonOrSpelledOtherwise) {
  const std::string text = manifest_text(small_checkpoint(20).manifest);
  for (const std::string& bad : {std::string(), std::string("{"), std::string("\xff"), text + "}"}) {
    EXPECT_EQ(refusal(bad), "is not valid JSON") << bad;
  }
  EXPECT_EQ(refusal("[]"), "is a list, needs an object");
  EXPECT_EQ(refusal(text + " "), "is not spelled as thinpipe writes it");
  EXPECT_EQ(refusal(good().dump()), "is not spelled as thinpipe writes it");
  std::string twice = text;
  twice.insert(1, "\n  \"step\": 4,");
  EXPECT_EQ(refusal(twice), "is not spelled as thinpipe writes it");
  EXPECT_EQ(refusal(std::string((4 << 20) + 1, ' ')), "has 4194305 bytes, at most 4194304 are read");
  EXPECT_NE(refusal(std::string(1 << 20, '[')), "taken");  // neither stack nor time
  const std::string nested = std::string(500'000, '[') + std::string(500'000, ']');
  EXPECT_EQ(refusal("{\"format\": " + nested + "}"),
            "format is a list, needs a text of 0 to 9223372036854775807 bytes");
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

TEST(CheckpointManifest, SaysThatAChangedValueIsDamage) {
  EXPECT_EQ(refusal_with("/next_sample", 321), "damaged: the values do not have the hash that manifest_sha256 says");
}

}  // namespace
}  // namespace thinpipe
