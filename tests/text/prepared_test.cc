// Manifests, and prepared corpora found and listed, whole and damaged.
#include "text/prepared.h"

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "text/prepare_setting.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Setting;
using test::write_file;

std::string found(const std::string& what, const Setting& setting) {
  const auto entry = find_prepared(what, setting.cache());
  return entry ? entry.value().id : entry.error().message;
}

TEST(Prepared, FindsACorpusByFolderIdPrefixAndSource) {
  Setting setting;
  const auto corpus = setting.prepare();
  EXPECT_EQ(found(corpus.folder, setting), corpus.id);
  EXPECT_EQ(found(corpus.id, setting), corpus.id);
  EXPECT_EQ(found(corpus.id.substr(0, 4), setting), corpus.id);
  EXPECT_EQ(found(setting.data.corpus, setting), corpus.id);
  for (const auto& what : {corpus.id.substr(0, 3), corpus.id + "0", std::string("zzzz"), std::string("")}) {
    EXPECT_TRUE(found(what, setting).starts_with("'" + what + "' is not a prepared corpus: ")) << found(what, setting);
  }
}

TEST(Prepared, SaysWhichCorporaAWordCouldMean) {
  Setting setting;
  const auto one = setting.prepare();
  setting.data.vocab = 401;
  const auto other = setting.prepare();
  const auto ids = [](const std::string& a, const std::string& b) {
    return std::min(a, b).substr(0, 12) + ", " + std::max(a, b).substr(0, 12);
  };
  EXPECT_EQ(found(setting.data.corpus, setting),
            fmt::format("'{}' is the source of 2 prepared corpora: give the id of one of {}", setting.data.corpus,
                        ids(one.id, other.id)));
  EXPECT_EQ(found(one.folder, setting), one.id);
  // The same corpus copied to another folder is the same corpus.
  fs::copy(one.folder, setting.cache() / "prepared/copy");
  EXPECT_EQ(found(one.id, setting), one.id);
  EXPECT_EQ(found(setting.data.corpus, setting),
            fmt::format("'{}' is the source of 2 prepared corpora: give the id of one of {}", setting.data.corpus,
                        ids(one.id, other.id)));
}

TEST(Prepared, ABeginningOfTwoIdsIsNotEnough) {
  Setting setting;
  const auto corpus = setting.prepare();
  const auto [one, other] = test::make_ids_alike(corpus, setting.cache());
  ASSERT_EQ(one.substr(0, 4), other.substr(0, 4));
  EXPECT_EQ(found(one.substr(0, 4), setting),
            fmt::format("'{}' begins the ids of 2 prepared corpora: give the id of one of {}, {}", one.substr(0, 4),
                        one.substr(0, 12), other.substr(0, 12)));
  EXPECT_EQ(found(one, setting), one);
  EXPECT_EQ(found(other, setting), other);
}

TEST(Prepared, ListsWhatIsWholeAndWhatIsDamaged) {
  Setting setting;
  EXPECT_TRUE(list_prepared(setting.cache()).empty());
  const auto corpus = setting.prepare();
  fs::copy(corpus.folder, setting.cache() / "prepared/.half.partial");
  auto listing = list_prepared(setting.cache());
  ASSERT_EQ(listing.size(), 1U);
  EXPECT_EQ(listing[0].id, corpus.id);
  EXPECT_EQ(listing[0].source, setting.data.corpus);
  EXPECT_EQ(listing[0].problem, "");
  EXPECT_GT(listing[0].bytes, fs::file_size(corpus.train) + fs::file_size(corpus.val));
  EXPECT_EQ(prepared_with_id(corpus.id, setting.cache())->folder, corpus.folder);
  fs::resize_file(corpus.val, 1030);
  write_file(setting.cache() / "prepared/nothing/manifest.json", "{}");
  listing = list_prepared(setting.cache());
  ASSERT_EQ(listing.size(), 1U);
  EXPECT_TRUE(listing[0].problem.starts_with(corpus.val.string() + ": not a token shard"));
  EXPECT_FALSE(prepared_with_id(corpus.id, setting.cache()));
}

Manifest some_manifest() {
  Manifest manifest;
  manifest.content_sha256 = manifest.tokenizer_sha256 = manifest.train.sha256 = manifest.val.sha256 = sha256_hex("x");
  manifest.vocab = 4096;
  manifest.val_fraction = 0.05;
  manifest.train.tokens = 123;
  manifest.val.text_bytes = uint64_t{1} << 40;
  manifest.train_unigram_entropy = 6.25;
  return manifest;
}

TEST(Manifest, ReadsBackWhatItWrites) {
  const std::string text = manifest_text(some_manifest());
  const auto parsed = parse_manifest(text, "m.json");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(manifest_text(parsed.value()), text);
  EXPECT_EQ(parsed.value().val.text_bytes, uint64_t{1} << 40);
  EXPECT_EQ(parsed.value().train_unigram_entropy, 6.25);
}

TEST(Manifest, RefusesAnyKeyMissingAddedOrOfAnotherType) {
  using Json = nlohmann::json;
  const auto good = Json::parse(manifest_text(some_manifest()));
  const auto refused = [](const Json& json) { return !parse_manifest(json.dump(2) + "\n", "m.json").ok(); };
  ASSERT_FALSE(refused(good));
  const auto try_all = [&](const Json::json_pointer& object) {
    for (const auto& [key, value] : good[object].items()) {
      auto changed = good;
      changed[object].erase(key);
      EXPECT_TRUE(refused(changed)) << key;
      for (const Json& wrong : {Json(nullptr), Json("x"), Json(-1), Json(1.5), Json(Json::array()),
                                Json(Json::object()), Json(sha256_hex("y") + "0")}) {
        changed = good;
        changed[object][key] = wrong;
        const bool fits = wrong == 1.5 && value.is_number_float();
        EXPECT_EQ(refused(changed), !fits) << key << wrong;
      }
      changed = good;
      changed[object][key + "2"] = value;
      EXPECT_TRUE(refused(changed)) << key;
    }
  };
  try_all(Json::json_pointer(""));
  try_all(Json::json_pointer("/val"));
  for (const Json& vocab : {Json(0), Json(uint64_t{1} << 31), Json(UINT64_MAX)}) {
    auto changed = good;
    changed["vocab"] = vocab;
    EXPECT_TRUE(refused(changed)) << vocab;
  }
}

TEST(Manifest, RefusesAnyOtherSpelling) {
  const std::string text = manifest_text(some_manifest());
  const std::string refusal = "m.json: not a manifest of a prepared corpus, version 1, as thinpipe writes it";
  for (const std::string& other : {std::string(), std::string("{}"), std::string("[]"), std::string("nonsense"),
                                   nlohmann::json::parse(text).dump(), text + " ", text.substr(0, text.size() - 1)}) {
    const auto parsed = parse_manifest(other, "m.json");
    ASSERT_FALSE(parsed.ok()) << other;
    EXPECT_EQ(parsed.error().message, refusal);
  }
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(parse_manifest(std::string_view(text).substr(0, length), "m.json").ok()) << length;
  }
}

}  // namespace
}  // namespace thinpipe
