// Preparation interrupted at every kind of point: the next one goes on, and what it makes is what an undisturbed one
// makes, byte for byte.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <set>

#include "base/sha256.h"
#include "support/faulty_file_system.h"
#include "text/encode_corpus.h"
#include "text/prepare.h"
#include "text/prepare_setting.h"
#include "text/shard_format.h"
#include "text/work_folder.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Setting;
using test::user_error;
using test::write_file;

constexpr std::string_view kTokenizing = "tokenizing";
constexpr std::string_view kTraining = "training the tokenizer";
const PrepareTuning kOften{.durable_every_bytes = 2000, .threads = 2};

// What every preparation of the sixty documents must make.
const std::map<std::string, std::string>& undisturbed() {
  static const auto files = [] {
    const Setting setting;
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(setting.prepare().folder)) {
      all[entry.path().filename()] = read_file(entry.path()).take();
    }
    all.erase("source.txt");  // names the scratch folder
    return all;
  }();
  return files;
}

// A disk that need not spin: a kill loses nothing that was written, synced or not.
class PrepareResumed : public ::testing::Test {
 private:
  test::FaultyFileSystem quick_;
  ScopedFileSystem scoped_{quick_};
};

struct Counted {
  std::map<std::string, size_t> phases;  // how often each was reported: once a document
  size_t of(std::string_view phase) const {
    const auto found = phases.find(std::string(phase));
    return found == phases.end() ? 0 : found->second;
  }
};

void expect_undisturbed(const Setting& setting, const fs::path& folder) {
  for (const auto& [name, bytes] : undisturbed()) EXPECT_EQ(read_file(folder / name).take(), bytes) << name;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 5);
  EXPECT_EQ(setting.prepared_entries(), 1U);
}

// Goes on to the end, checks what came out, and says what had to be done.
Counted finish(const Setting& setting) {
  Counted counted;
  const auto corpus = prepare_corpus(
      setting.data, setting.cache(),
      [&](std::string_view phase, uint64_t, uint64_t) { ++counted.phases[std::string(phase)]; }, kOften);
  expect_undisturbed(setting, corpus.folder);
  return counted;
}

// A process of its own that is killed when it reports `phase` for the nth time. False: it came to its end before.
bool killed_at(const Setting& setting, std::string_view phase, size_t n) {
  const pid_t child = ::fork();
  if (child == 0) {
    size_t seen = 0;
    const auto die = [&](std::string_view now, uint64_t, uint64_t) {
      if (now == phase && ++seen == n) ::kill(::getpid(), SIGKILL);
    };
    try {
      prepare_corpus(setting.data, setting.cache(), die, kOften);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

TEST_F(PrepareResumed, AKilledProcessIsGoneOnFrom) {
  for (const size_t n : {1, 7, 20, 41, 59, 60}) {
    SCOPED_TRACE(n);
    const Setting setting;
    ASSERT_TRUE(killed_at(setting, kTokenizing, n));
    EXPECT_EQ(unfinished_in(setting.cache() / "prepared").size(), 1U);
    const auto counted = finish(setting);
    EXPECT_EQ(counted.of(kTraining), 0U) << "the tokenizer was trained again";
    // A durable point every 2000 bytes, about five documents; a batch may be as long.
    EXPECT_LE(counted.of(kTokenizing), test::kDocuments - std::min<size_t>(n - 1, test::kDocuments) + 10);
    EXPECT_EQ(counted.of(kTokenizing) + counted.of("finding the place where it was interrupted"), test::kDocuments);
  }
}

TEST_F(PrepareResumed, AKillBeforeTheTokenizerIsTrainedCostsOnlyThat) {
  const Setting setting;
  ASSERT_TRUE(killed_at(setting, kTraining, 30));
  EXPECT_EQ(finish(setting).of(kTokenizing), test::kDocuments);
}

TEST_F(PrepareResumed, KillAfterKillItGetsThere) {
  const Setting setting;
  size_t kills = 0;
  while (killed_at(setting, kTokenizing, 17)) ASSERT_LT(++kills, 50U);
  EXPECT_GE(kills, 3U);
  EXPECT_EQ(finish(setting).of(kTokenizing), 0U);
}

TEST_F(PrepareResumed, ThreadsAndPointsAreNoPartOfTheResult) {
  for (const unsigned threads : {1U, 3U, 100U}) {
    for (const uint64_t every : {uint64_t{1}, uint64_t{5000}, uint64_t{1} << 40}) {
      const Setting setting;
      expect_undisturbed(setting, prepare_corpus(setting.data, setting.cache(), {}, {every, threads}).folder);
    }
  }
}

TEST_F(PrepareResumed, DocumentsAreEncodedInOrderByAnyNumberOfThreads) {
  const Setting setting;
  const auto tokenizer = Tokenizer::load(setting.prepare().tokenizer).take();
  const auto texts = test::sixty_documents();
  for (const unsigned threads : {1U, 2U, 7U}) {
    std::vector<WordEncoder> encoders(threads, WordEncoder(tokenizer));
    const auto ids = encode_documents(tokenizer, encoders, texts);
    ASSERT_EQ(ids.size(), texts.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(ids[i].front(), tokenizer.bos());
      EXPECT_EQ(tokenizer.decode(ids[i]).take(), texts[i]);
    }
  }
  std::vector<WordEncoder> encoders(2, WordEncoder(tokenizer));
  EXPECT_TRUE(encode_documents(tokenizer, encoders, {}).empty());
}

struct Interrupted {};

// A folder with what a preparation left that was interrupted after 40 documents.
fs::path interrupted(const Setting& setting) {
  size_t seen = 0;
  try {
    prepare_corpus(
        setting.data, setting.cache(),
        [&](std::string_view phase, uint64_t, uint64_t) {
          if (phase == kTokenizing && ++seen == 40) throw Interrupted();
        },
        kOften);
  } catch (const Interrupted&) {
  }
  EXPECT_EQ(setting.prepared_entries(), 1U);
  return fs::directory_iterator(setting.cache() / "prepared")->path();
}

TEST_F(PrepareResumed, AnExceptionFromTheOneWhoWatchesIsAnInterruption) {
  const Setting setting;
  interrupted(setting);
  const auto counted = finish(setting);
  EXPECT_EQ(counted.of(kTraining), 0U);
  EXPECT_LT(counted.of(kTokenizing), 40U);
}

TEST_F(PrepareResumed, WhatWasNotDurableMayBeLostOrBeAnything) {
  const Setting setting;
  const auto folder = interrupted(setting);
  const auto key = setting.cache() / "prepared";
  const auto state = nlohmann::json::parse(read_file(folder / "progress.json").take());
  for (const char* name : {"train", "val"}) {
    const auto bytes = kShardHeaderBytes + 2 * state[name]["tokens"].get<uint64_t>();
    const auto file = folder / (std::string(name) + ".bin");
    fs::resize_file(file, bytes);                                              // lost
    if (std::string_view(name) == "train") fs::resize_file(file, bytes + 99);  // zeros where tokens were to be
  }
  write_file(folder / "progress.json.partial-Ab12Cd", "{");
  EXPECT_LT(finish(setting).of(kTokenizing), 40U);
}

TEST_F(PrepareResumed, ADamagedLeftoverIsNoHarm) {
  const auto with = [](const std::string& name, const auto& change) {
    SCOPED_TRACE(name);
    const Setting setting;
    const auto folder = interrupted(setting);
    std::string bytes = read_file(folder / name).take();
    change(bytes);
    write_file(folder / name, bytes);
    finish(setting);
  };
  const auto flip = [](size_t at) {
    return [at](std::string& bytes) { bytes[at] = static_cast<char>(bytes[at] ^ 1); };
  };
  with("train.bin", flip(kShardHeaderBytes + 500));
  with("train.bin", flip(0));
  with("val.bin", [](std::string& bytes) { bytes.resize(kShardHeaderBytes + 3); });
  with("tokenizer.model", flip(300));
  with("tokenizer.model", [](std::string& bytes) { bytes.clear(); });
  with("progress.json", [](std::string& bytes) { bytes.resize(bytes.size() / 2); });
  const auto set = [&](const char* split, const char* key, nlohmann::json value) {
    with("progress.json", [&](std::string& bytes) {
      auto state = nlohmann::json::parse(bytes);
      (*split == '\0' ? state : state[split])[key] = value;
      bytes = state.dump();
    });
  };
  set("", "key", "another");
  set("", "version", 2);
  set("train", "tokens", UINT64_MAX);
  set("train", "tokens", 3);
  set("val", "checksum", 3);
  set("val", "tokens", "many");
  set("", "more", 1);
}

TEST_F(PrepareResumed, ASourceThatChangedStartsOverAndAnotherTokenizerToo) {
  Setting setting;
  interrupted(setting);
  auto texts = test::sixty_documents();
  texts[50] += "!";
  write_file(setting.data.corpus, test::jsonl(texts));
  const auto changed = setting.prepare();
  EXPECT_NE(changed.manifest.content_sha256, sha256_hex(""));
  const Setting fresh(test::jsonl(texts));
  EXPECT_EQ(changed.id, fresh.prepare().id);
  // The old text's beginning is still there for whoever brings the old text back.
  write_file(setting.data.corpus, test::jsonl(test::sixty_documents()));
  Counted counted;
  prepare_corpus(
      setting.data, setting.cache(),
      [&](std::string_view phase, uint64_t, uint64_t) { ++counted.phases[std::string(phase)]; }, kOften);
  EXPECT_LT(counted.of(kTokenizing), 40U);
}

TEST_F(PrepareResumed, AFullDiskIsGoneOnFromWhenThereIsRoomAgain) {
  const Setting setting;
  const test::SmallDisk disk(256 << 10);
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  const fs::path cache = disk.folder() / "cache";
  // Leaves room for the tokenizer and a page or two of tokens.
  write_file(disk.folder() / "ballast", std::string((256 << 10) - (40 << 10), 'x'));
  const auto said = user_error([&] { prepare_corpus(setting.data, cache, {}, kOften); });
  EXPECT_TRUE(said.ends_with("No space left on device")) << said;
  EXPECT_EQ(unfinished_in(cache / "prepared").size(), 1U);
  fs::remove(disk.folder() / "ballast");
  Counted counted;
  const auto corpus = prepare_corpus(
      setting.data, cache, [&](std::string_view phase, uint64_t, uint64_t) { ++counted.phases[std::string(phase)]; },
      kOften);
  for (const auto& [name, bytes] : undisturbed()) EXPECT_EQ(read_file(corpus.folder / name).take(), bytes) << name;
  EXPECT_EQ(counted.of(kTraining), 0U);
  EXPECT_LT(counted.of(kTokenizing), test::kDocuments);
}

TEST(PrepareFaults, EveryFailureOfTheDiskLeavesTheWholeOrAPlaceToGoOnFrom) {
  Setting trained;
  const auto tokenizer = trained.prepare().tokenizer;
  const auto content =
      test::jsonl({test::english(9, 1), test::english(9, 2), test::english(9, 3), test::english(9, 4)});
  const auto setting_with_tokenizer = [&] {
    auto setting = std::make_unique<Setting>(content);
    setting->data.tokenizer = tokenizer;
    setting->data.vocab = 400;
    return setting;
  };
  const PrepareTuning tuning{.durable_every_bytes = 500, .threads = 1};
  const auto prepare = [&](const Setting& setting) {
    return prepare_corpus(setting.data, setting.cache(), {}, tuning);
  };
  test::FaultyFileSystem counting;
  std::string id;
  {
    const auto setting = setting_with_tokenizer();
    const ScopedFileSystem scoped(counting);
    id = prepare(*setting).id;
  }
  ASSERT_GT(counting.operations().size(), 30U);
  for (const auto fault :
       {test::Fault::kIoError, test::Fault::kNoSpace, test::Fault::kShortWrite, test::Fault::kCrash}) {
    for (size_t at = 1; at <= counting.operations().size(); ++at) {
      const bool writes = counting.operations()[at - 1].ends_with("write");
      if (!writes && (fault == test::Fault::kNoSpace || fault == test::Fault::kShortWrite)) continue;
      SCOPED_TRACE(fmt::format("{} at {} ({})", test::name_of(fault), at, counting.operations()[at - 1]));
      const auto setting = setting_with_tokenizer();
      test::FaultyFileSystem faulty(fault, at);
      std::string said;
      {
        const ScopedFileSystem scoped(faulty);
        said = user_error([&] { prepare(*setting); });
      }
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      std::error_code none;
      for (const auto& entry : fs::directory_iterator(setting->cache() / "prepared", none)) {
        const bool hidden = entry.path().filename().string().starts_with('.');
        EXPECT_TRUE(hidden || open_prepared(entry.path()).ok()) << entry.path();
      }
      test::FaultyFileSystem healthy;
      const ScopedFileSystem scoped(healthy);
      EXPECT_EQ(prepare(*setting).id, id);
      EXPECT_EQ(setting->prepared_entries(), 1U);
    }
  }
}

// Notes how much of each file has been synced, and asks whenever progress.json gets its name.
class SyncWatch final : public FileSystem {
 public:
  int fsync(int descriptor) override {
    struct stat status {};
    EXPECT_EQ(::fstat(descriptor, &status), 0);
    synced_[status.st_ino] = status.st_size;
    return 0;
  }
  int rename(const std::string& from, const std::string& to) override {
    if (to.ends_with("progress.json")) check(nlohmann::json::parse(read_file(from).take()), fs::path(to).parent_path());
    return FileSystem::rename(from, to);
  }
  int checked = 0;

 private:
  void check(const nlohmann::json& state, const fs::path& folder) {
    for (const char* name : {"train", "val"}) {
      const auto tokens = state[name]["tokens"].get<uint64_t>();
      if (tokens == 0) continue;
      struct stat status {};
      ASSERT_EQ(::stat((folder / (std::string(name) + ".bin")).c_str(), &status), 0);
      EXPECT_GE(synced_[status.st_ino], static_cast<off_t>(kShardHeaderBytes + 2 * tokens));
      ++checked;
    }
  }

  std::map<ino_t, off_t> synced_;
};

TEST(PrepareFaults, ProgressSpeaksOnlyOfWhatIsOnTheDisk) {
  const Setting setting;
  SyncWatch watch;
  const ScopedFileSystem scoped(watch);
  prepare_corpus(setting.data, setting.cache(), {}, kOften);
  EXPECT_GT(watch.checked, 6);
}

TEST_F(PrepareResumed, WhatWasInterruptedLongAgoIsRemoved) {
  const Setting setting;
  const auto parent = setting.cache() / "prepared";
  const auto now = fs::file_time_type::clock::now();
  write_file(parent / ".aaaa.unfinished/train.bin", "half");
  write_file(parent / ".bbbb.unfinished/train.bin", "half");
  fs::last_write_time(parent / ".aaaa.unfinished", now - std::chrono::days(15));
  fs::last_write_time(parent / ".bbbb.unfinished", now - std::chrono::days(13));
  setting.prepare();
  EXPECT_EQ(unfinished_in(parent), std::vector<std::string>{"bbbb"});
}

}  // namespace
}  // namespace thinpipe
