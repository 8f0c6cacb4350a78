// Prepared corpora named, listed and verified, whole and damaged.
#include "text/prepared_store.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/sha256.h"
#include "text/prepare_setting.h"
#include "text/token_shard_writer.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Setting;
using test::write_file;

std::string found(const std::string& what, const Setting& setting) {
  const auto entry = find_prepared(what, setting.cache());
  return entry ? entry.value().id : entry.error().message;
}

TEST(PreparedStore, FindsACorpusByFolderIdPrefixAndSource) {
  Setting setting;
  const auto corpus = setting.prepare();
  EXPECT_EQ(found(corpus.folder, setting), corpus.id);
  EXPECT_EQ(found(corpus.id, setting), corpus.id);
  EXPECT_EQ(found(corpus.id.substr(0, 4), setting), corpus.id);
  EXPECT_EQ(found(setting.data.corpus, setting), corpus.id);
  for (const auto& what : {corpus.id.substr(0, 3), corpus.id + "0", std::string("zzzz"), std::string("")}) {
    EXPECT_TRUE(found(what, setting).starts_with("'" + what + "' is no prepared corpus: ")) << found(what, setting);
  }
}

TEST(PreparedStore, SaysWhichCorporaAWordCouldMean) {
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

TEST(PreparedStore, ABeginningOfTwoIdsIsNotEnough) {
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

TEST(PreparedStore, ListsWhatIsWholeDamagedAndUnfinished) {
  Setting setting;
  EXPECT_TRUE(list_prepared(setting.cache()).prepared.empty());
  const auto corpus = setting.prepare();
  try {
    setting.data.vocab = 402;
    prepare_corpus(setting.data, setting.cache(),
                   [](std::string_view phase, uint64_t done, uint64_t) {
                     if (phase == "tokenizing" && done > 10'000) throw 1;
                   },
                   {.durable_every_bytes = 3000, .threads = 1});
  } catch (int) {
  }
  auto listing = list_prepared(setting.cache());
  ASSERT_EQ(listing.prepared.size(), 1U);
  EXPECT_EQ(listing.prepared[0].id, corpus.id);
  EXPECT_EQ(listing.prepared[0].source, setting.data.corpus);
  EXPECT_EQ(listing.prepared[0].problem, "");
  EXPECT_GT(listing.prepared[0].bytes, fs::file_size(corpus.train) + fs::file_size(corpus.val));
  ASSERT_EQ(listing.unfinished.size(), 1U);
  EXPECT_EQ(listing.unfinished[0].source, setting.data.corpus);
  EXPECT_GE(listing.unfinished[0].text_bytes, 3000U);
  fs::resize_file(corpus.val, 1030);
  write_file(setting.cache() / "prepared/nothing/manifest.json", "{}");
  listing = list_prepared(setting.cache());
  ASSERT_EQ(listing.prepared.size(), 1U);
  EXPECT_TRUE(listing.prepared[0].problem.starts_with(corpus.val.string() + ": not a token shard"));
}

class Verify : public ::testing::Test {
 protected:
  Setting setting_;
  PreparedCorpus corpus_ = setting_.prepare();

  std::string said() const {
    const auto verified = verify_prepared(corpus_.folder);
    return verified ? "(fine)" : verified.error().message;
  }
  void change_manifest(const std::function<void(Manifest&)>& change) const {
    Manifest manifest = corpus_.manifest;
    change(manifest);
    write_file(corpus_.folder / "manifest.json", manifest_text(manifest));
  }
};

TEST_F(Verify, AWholeCorpusIsFine) {
  EXPECT_EQ(said(), "(fine)");
  EXPECT_EQ(verify_prepared(corpus_.folder).take().id, corpus_.id);
}

TEST_F(Verify, AnyChangedByteOfAnyFileIsFound) {
  for (const char* name : {"train.bin", "val.bin", "tokenizer.model", "manifest.json"}) {
    const auto path = corpus_.folder / name;
    const std::string good = read_file(path).take();
    for (size_t i = 0; i < 40; ++i) {
      const size_t at = CounterRng(i, name).below(good.size(), 0);
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (i % 8)));
      write_file(path, bad);
      const auto verified = verify_prepared(corpus_.folder);
      if (verified) {
        // Some digits of the manifest no other file can contradict: then at least it is another corpus.
        EXPECT_EQ(std::string(name), "manifest.json") << at;
        EXPECT_NE(verified.value().id, corpus_.id) << at;
      } else {
        EXPECT_NE(verified.error().message.find(corpus_.folder.string()), std::string::npos) << name << at;
      }
    }
    write_file(path, good);
  }
  EXPECT_EQ(said(), "(fine)");
}

TEST_F(Verify, NamesTheFileAndWhatIsWrong) {
  const auto good = read_file(corpus_.train).take();
  auto bad = good;
  std::memcpy(bad.data() + kShardHeaderBytes + 14, "\xff\xff", 2);
  write_file(corpus_.train, bad);
  EXPECT_EQ(said(), corpus_.train.string() + ": token 65535 at position 7 is not below the vocabulary of 400");
  bad = good;
  std::swap(bad[kShardHeaderBytes + 20], bad[kShardHeaderBytes + 24]);
  write_file(corpus_.train, bad);
  EXPECT_EQ(said(), fmt::format("{}: its SHA-256 is {}, its manifest says {}", corpus_.train.string(), sha256_hex(bad),
                                corpus_.manifest.train.sha256));
  write_file(corpus_.train, good.substr(0, good.size() - 2));
  EXPECT_TRUE(said().starts_with(corpus_.train.string() + ": not a token shard: "));
  write_file(corpus_.train, good);
  fs::remove(corpus_.val);
  EXPECT_EQ(said(), "cannot read " + corpus_.val.string() + ": No such file or directory");
}

TEST_F(Verify, AManifestThatContradictsItsFilesIsFound) {
  const auto path = (corpus_.folder / "manifest.json").string();
  change_manifest([](Manifest& manifest) { manifest.train.documents += 1; });
  EXPECT_EQ(said(), fmt::format("{}: has {} documents, its manifest says {}", corpus_.train.string(),
                                corpus_.manifest.train.documents, corpus_.manifest.train.documents + 1));
  change_manifest([](Manifest& manifest) { manifest.val.tokens += 1; });
  EXPECT_NE(said().find("its manifest says"), std::string::npos);
  change_manifest([](Manifest& manifest) { manifest.vocab = 4096; });
  EXPECT_EQ(said(), corpus_.tokenizer.string() + ": has 400 pieces, its manifest says 4096");
  change_manifest([](Manifest& manifest) { manifest.train_unigram_entropy += 0.1; });
  EXPECT_TRUE(said().starts_with(path + ": says a unigram entropy of ")) << said();
  const auto text = manifest_text(corpus_.manifest);
  write_file(path, nlohmann::json::parse(text).dump());
  EXPECT_EQ(said(), path + ": is not written as thinpipe writes it, so that its corpus id is another");
  write_file(path, text);
  EXPECT_EQ(said(), "(fine)");
}

TEST(ShardFacts, CountsWhatIsThere) {
  const test::ScratchFolder folder;
  const auto facts = [&](const std::vector<int32_t>& tokens, int64_t vocab) {
    auto writer = TokenShardWriter::create(folder / "x.bin", vocab).take();
    writer.append(tokens).take();
    writer.finish().take();
    return shard_facts(TokenShard::open(folder / "x.bin").take()).take();
  };
  const auto small = facts({5, 5, 9, 0, 9}, 100);
  EXPECT_EQ(small.tokens, 5U);
  EXPECT_EQ(small.token_bytes, 2U);
  EXPECT_EQ(small.distinct, 3U);
  EXPECT_EQ(small.greatest, 9U);
  facts({1, 7}, 70'000);
  auto bytes = read_file(folder / "x.bin").take();
  bytes[kShardHeaderBytes + 3] = 0x40;
  write_file(folder / "x.bin", bytes);
  const auto wide = shard_facts(TokenShard::open(folder / "x.bin").take()).take();
  EXPECT_EQ(wide.token_bytes, 4U);
  EXPECT_EQ(wide.distinct, 1U);
  EXPECT_EQ(wide.greatest, (1U << 30) + 1);
  EXPECT_EQ(facts({}, 10).distinct, 0U);
}

}  // namespace
}  // namespace thinpipe
