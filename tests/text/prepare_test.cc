// Prepares a corpus from end to end: which documents go to which split, what the identity depends on, every
// interruption, and the progress line.
#include "text/prepare.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/sha256.h"
#include "support/faulty_file_system.h"
#include "support/scratch.h"
#include "text/prepare_setting.h"
#include "text/sampler.h"
#include "text/shards.h"
#include "text/text_files.h"
#include "text/tokenizer.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::english;
using test::jsonl;
using test::kDocuments;
using test::ScratchFolder;
using test::Setting;
using test::sixty_documents;
using test::user_error;
using test::validation_of;
using test::write_file;

std::vector<int32_t> all_tokens(const fs::path& path) {
  const auto shard = TokenShard::open(path).take();
  std::vector<int32_t> tokens(shard.size());
  shard.read(0, tokens).take();
  return tokens;
}

TEST(Prepare, PutsEveryDocumentIntoItsSplitInOrder) {
  const Setting setting;
  const auto corpus = setting.prepare();
  const auto tokenizer = Tokenizer::load(corpus.tokenizer).take();
  const auto texts = sixty_documents();
  const auto val = validation_of(texts.size(), 0.2);
  std::vector<int32_t> expected[2];
  uint64_t bytes[2] = {0, 0};
  uint64_t counts[2] = {0, 0};
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t side = val[i] ? 1 : 0;
    expected[side].push_back(tokenizer.bos());
    const auto ids = tokenizer.encode(texts[i]);
    expected[side].insert(expected[side].end(), ids.begin(), ids.end());
    bytes[side] += texts[i].size();
    ++counts[side];
  }
  EXPECT_EQ(all_tokens(corpus.train), expected[0]);
  EXPECT_EQ(all_tokens(corpus.val), expected[1]);
  const Manifest& manifest = corpus.manifest;
  EXPECT_EQ(manifest.train.text_bytes, bytes[0]);
  EXPECT_EQ(manifest.val.text_bytes, bytes[1]);
  EXPECT_EQ(manifest.train.documents, counts[0]);
  EXPECT_EQ(manifest.val.documents, counts[1]);
  EXPECT_EQ(manifest.train.tokens, expected[0].size());
  EXPECT_EQ(manifest.val.tokens, expected[1].size());
}

TEST(Prepare, TrainingVisitsEachWindowOncePerPassAndNoValidationText) {
  const Setting setting;
  const auto corpus = setting.prepare();
  const auto shard = TokenShard::open(corpus.train).take();
  const auto tokenizer = Tokenizer::load(corpus.tokenizer).take();
  const int64_t seq_len = 16;
  const uint64_t windows = require_windows(shard.size(), seq_len, "training");
  const TrainSampler sampler(corpus.id, 1, windows);
  for (uint64_t pass = 0; pass < 2; ++pass) {
    std::map<uint64_t, std::vector<int32_t>> inputs;  // by window
    std::vector<int32_t> window(static_cast<size_t>(seq_len) + 1);
    for (uint64_t i = 0; i < windows; ++i) {
      const uint64_t number = sampler.window(pass * windows + i);
      read_window(shard, number, window).take();
      EXPECT_TRUE(inputs.emplace(number, std::vector<int32_t>(window.begin(), window.end() - 1)).second);
    }
    std::vector<int32_t> seen;
    for (const auto& [number, tokens] : inputs) seen.insert(seen.end(), tokens.begin(), tokens.end());
    const auto whole = all_tokens(corpus.train);
    EXPECT_EQ(seen, std::vector<int32_t>(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(seen.size())));
    EXPECT_LE(whole.size() - seen.size(), 16U);
    // Each document names itself.
    const std::string text = tokenizer.decode(seen).take();
    const auto val = validation_of(kDocuments, 0.2);
    for (size_t i = 0; i < kDocuments; ++i) {
      EXPECT_EQ(text.find(fmt::format("Document {}.\n", i)) == std::string::npos, val[i]) << i;
    }
  }
}

TEST(Prepare, TheTokenizerNeverSeesValidationText) {
  const auto val = validation_of(kDocuments, 0.2);
  auto texts = sixty_documents();
  const Setting before(jsonl(texts));
  for (size_t i = 0; i < texts.size(); ++i) {
    if (val[i]) texts[i] = "\u0416\u0416\u0416 zzyzx qqqq zzyzx qqqq " + texts[i];
  }
  const Setting after(jsonl(texts));
  const auto first = before.prepare();
  const auto second = after.prepare();
  EXPECT_EQ(first.manifest.tokenizer_sha256, second.manifest.tokenizer_sha256);
  EXPECT_EQ(first.manifest.train.sha256, second.manifest.train.sha256);
  EXPECT_NE(first.manifest.val.sha256, second.manifest.val.sha256);
  EXPECT_NE(first.id, second.id);
}

TEST(Prepare, TheManifestDescribesItsFiles) {
  const Setting setting;
  const auto corpus = setting.prepare();
  EXPECT_EQ(corpus.folder.parent_path(), setting.cache() / "prepared");
  EXPECT_EQ(corpus.vocab, 400);
  EXPECT_EQ(corpus.id, sha256_hex(read_file(corpus.folder / "manifest.json").take()));
  EXPECT_EQ(corpus.manifest.train.sha256, sha256_hex(read_file(corpus.train).take()));
  EXPECT_EQ(corpus.manifest.val.sha256, sha256_hex(read_file(corpus.val).take()));
  EXPECT_EQ(corpus.manifest.tokenizer_sha256, sha256_hex(read_file(corpus.tokenizer).take()));
  EXPECT_EQ(corpus.manifest.val_fraction, 0.2);
  const auto tokens = all_tokens(corpus.train);
  std::map<int32_t, double> counts;
  for (const int32_t token : tokens) ++counts[token];
  double entropy = 0;
  for (const auto& [token, count] : counts) {
    entropy -= count / static_cast<double>(tokens.size()) * std::log(count / static_cast<double>(tokens.size()));
  }
  EXPECT_NEAR(corpus.manifest.train_unigram_entropy, entropy, 1e-6);
  EXPECT_TRUE(TokenShard::open(corpus.train).take().check_ids_below(corpus.vocab).ok());
}

TEST(Prepare, TheSecondCallOnlyReadsTheSource) {
  const Setting setting;
  const auto first = setting.prepare();
  const auto written = fs::last_write_time(first.folder);
  const auto touched = fs::last_write_time(first.folder.parent_path());
  std::set<std::string> phases;
  const auto second = prepare_corpus(setting.data, setting.cache(),
                                     [&](std::string_view phase, uint64_t, uint64_t) { phases.emplace(phase); });
  EXPECT_EQ(second.id, first.id);
  EXPECT_EQ(phases, std::set<std::string>{"reading the corpus"});
  EXPECT_EQ(fs::last_write_time(second.folder), written);
  // Not even a lock: the cache may be read-only.
  EXPECT_EQ(fs::last_write_time(second.folder.parent_path()), touched);
  EXPECT_EQ(setting.prepared_entries(), 1U);
}

TEST(Prepare, TheIdentityDependsOnContentAndSettingsNotOnPlaces) {
  const Setting here;
  const Setting there(jsonl(sixty_documents()), "elsewhere.jsonl");
  const std::string id = here.prepare().id;
  EXPECT_EQ(there.prepare().id, id);
  // In one cache, where settings with equal keys would find each other's folder.
  Setting changed;
  EXPECT_EQ(changed.prepare().id, id);
  changed.data.val_fraction = 0.3;
  EXPECT_NE(changed.prepare().id, id);
  changed.data.val_fraction = 0.2;
  changed.data.vocab = 401;
  EXPECT_NE(changed.prepare().id, id);
  changed.data.vocab = 400;
  auto texts = sixty_documents();
  texts[5] += "!";
  write_file(changed.data.corpus, jsonl(texts));
  EXPECT_NE(changed.prepare().id, id);
}

TEST(Prepare, MakesADamagedFolderAgain) {
  const Setting setting;
  const auto good = setting.prepare();
  const std::string train = read_file(good.train).take();
  const std::string manifest = read_file(good.folder / "manifest.json").take();
  const auto damage = [&](const std::string& name, const std::string& bytes) {
    write_file(good.folder / name, bytes);
    EXPECT_FALSE(open_prepared(good.folder).ok()) << name;
    EXPECT_EQ(setting.prepare().id, good.id) << name;
    EXPECT_TRUE(open_prepared(good.folder).ok()) << name;
    EXPECT_EQ(setting.prepared_entries(), 1U);
  };
  damage("train.bin", train.substr(0, train.size() - 2));
  damage("train.bin", read_file(good.val).take());
  damage("manifest.json", manifest.substr(0, manifest.size() / 2));
  damage("manifest.json", "");
  damage("tokenizer.model", "x");
  fs::remove(good.val);
  EXPECT_EQ(setting.prepare().id, good.id);
}

TEST(Prepare, ConcurrentProcessesGetTheSameCorpus) {
  const Setting setting;
  const std::string id = Setting().prepare().id;
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int code = 1;
      try {
        code = setting.prepare().id == id ? 0 : 2;
      } catch (...) {
      }
      ::_exit(code);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(setting.prepared_entries(), 1U);
}

TEST(Prepare, UsesAGivenTokenizer) {
  const Setting first;
  const auto trained = first.prepare();
  Setting second(jsonl({english(50, 7), english(50, 8), english(50, 9)}));
  second.data.tokenizer = trained.tokenizer;
  const auto corpus = second.prepare();
  EXPECT_EQ(corpus.manifest.tokenizer_sha256, trained.manifest.tokenizer_sha256);
  EXPECT_EQ(read_file(corpus.tokenizer).take(), read_file(trained.tokenizer).take());

  second.data.vocab = 4096;
  EXPECT_EQ(second.error(), fmt::format("data.vocab = 4096, but data.tokenizer {} has 400 pieces; set data.vocab = 400",
                                        second.data.tokenizer));
  second.data.tokenizer = second.folder / "no.model";
  EXPECT_EQ(second.error(), "data.tokenizer: cannot read " + second.data.tokenizer + ": No such file or directory");
  second.data.tokenizer = second.data.corpus;
  EXPECT_EQ(second.error(),
            "data.tokenizer: " + second.data.corpus +
                ": not a complete sentencepiece model: needs a .model file, as written by `thinpipe tokenizer train`");
}

TEST(Prepare, CutsASmallCorpusFineEnoughToSplit) {
  for (const auto& [content, name] :
       {std::pair{english(200, 1), std::string("a.txt")}, std::pair{jsonl({english(200, 1)}), std::string("a.jsonl")},
        std::pair{english(4000, 1), std::string("b.txt")}}) {
    Setting setting(content, name);
    setting.data.val_fraction = 0.1;
    const auto corpus = setting.prepare();
    const auto& [train, val] = std::pair{corpus.manifest.train, corpus.manifest.val};
    EXPECT_GE(train.documents + val.documents, 20U);
    EXPECT_GE(val.documents, 1U);
    const double share = static_cast<double>(val.text_bytes) / static_cast<double>(val.text_bytes + train.text_bytes);
    EXPECT_GT(share, 0.01);
    EXPECT_LT(share, 0.3);
    // Nothing is lost: these are the bytes of the text.
    EXPECT_EQ(train.text_bytes + val.text_bytes, english(name == "b.txt" ? 4000 : 200, 1).size());
  }
}

TEST(Prepare, RefusesACorpusWithoutText) {
  EXPECT_EQ(Setting("", "a.txt").error().substr(0, 15), "data.corpus = \"");
  EXPECT_TRUE(Setting("", "a.txt").error().ends_with("a.txt\" has no text: give a larger corpus, or \"kjv\""));
  EXPECT_TRUE(
      Setting("\n\n{\"text\": \"\"}\n").error().ends_with("c.jsonl\" has no text: give a larger corpus, or \"kjv\""));
  EXPECT_TRUE(
      Setting("ab", "a.txt")
          .error()
          .ends_with("has 2 bytes of text, too little for a validation split: give a larger corpus, or \"kjv\""));
}

TEST(Prepare, ReportsErrorsOfTheSource) {
  const Setting setting("fine\n\xFF\n", "a.txt");
  EXPECT_TRUE(setting.error().starts_with(setting.data.corpus + ": line 2 (byte 5): invalid UTF-8; set data.encoding"))
      << setting.error();
  EXPECT_EQ(setting.prepared_entries(), 0U);
  Setting large_vocab;
  large_vocab.data.vocab = 50000;
  EXPECT_TRUE(large_vocab.error().starts_with("data.vocab = 50000 is too large: the training text has at most "));
  EXPECT_EQ(large_vocab.prepared_entries(), 0U);
  Setting fraction;
  fraction.data.val_fraction = 1;
  EXPECT_EQ(fraction.error(), "data.val_fraction = 1 must be at least 0 and below 1");
}

TEST(Prepare, RefusesASourceThatChangesWhileItIsRead) {
  const Setting setting;
  bool changed = false;
  const auto change = [&](std::string_view phase, uint64_t, uint64_t) {
    if (phase != "training the tokenizer" || std::exchange(changed, true)) return;
    auto texts = sixty_documents();
    texts[40] += "!";
    write_file(setting.data.corpus, jsonl(texts));
  };
  EXPECT_EQ(user_error([&] { prepare_corpus(setting.data, setting.cache(), change); }),
            "data.corpus = \"" + setting.data.corpus + "\" changed while it was read; try again");
  EXPECT_TRUE(changed);
  EXPECT_EQ(setting.prepared_entries(), 0U);
}

TEST(Prepare, OnAFullDiskLeavesNothingBehind) {
  const Setting setting;
  // Room for the tokenizer but not for the shards; then for neither.
  for (const size_t bytes : {32 << 10, 12 << 10}) {
    const test::SmallDisk disk(bytes);
    if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
    const fs::path cache = disk.folder() / "cache";
    const std::string said = user_error([&] { prepare_corpus(setting.data, cache); });
    EXPECT_TRUE(said.ends_with("No space left on device")) << said;
    EXPECT_TRUE(!fs::exists(cache / "prepared") || fs::is_empty(cache / "prepared"));
  }
}

TEST(Prepare, NamesACacheItCannotWriteTo) {
  const Setting setting;
  write_file(setting.folder / "file", "x");
  const std::string said = user_error([&] { prepare_corpus(setting.data, setting.folder / "file"); });
  EXPECT_TRUE(said.starts_with("cannot create folder " + (setting.folder / "file/prepared").string())) << said;
}

// A process that is killed when it reports `phase` for the nth time.
void kill_preparation(const Setting& setting, std::string_view phase, size_t n) {
  const pid_t child = ::fork();
  if (child == 0) {
    size_t seen = 0;
    const auto die = [&](std::string_view now, uint64_t, uint64_t) {
      if (now == phase && ++seen == n) ::kill(::getpid(), SIGKILL);
    };
    try {
      prepare_corpus(setting.data, setting.cache(), die);
    } catch (...) {
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
}

TEST(Prepare, KilledInTheMiddle_LeavesNothingThatIsUsed_AndTheNextCallWorks) {
  const Setting undisturbed;
  const std::string id = undisturbed.prepare().id;
  for (const auto& [phase, n] : {std::pair{"training the tokenizer", 30}, std::pair{"tokenizing", 1},
                                 std::pair{"tokenizing", 41}, std::pair{"tokenizing", 60}}) {
    SCOPED_TRACE(fmt::format("{} {}", phase, n));
    Setting setting;
    kill_preparation(setting, phase, static_cast<size_t>(n));
    EXPECT_EQ(setting.prepared_entries(), 1U) << "the hidden folder";
    EXPECT_TRUE(list_prepared(setting.cache()).empty());
    EXPECT_EQ(setting.prepare().id, id);
    EXPECT_EQ(setting.prepared_entries(), 1U);
    // A preparation of another corpus cleans up too.
    setting.data.vocab = 401;
    kill_preparation(setting, phase, static_cast<size_t>(n));
    setting.data.vocab = 402;
    setting.prepare();
    EXPECT_EQ(setting.prepared_entries(), 2U) << "two complete corpora";
  }
}

TEST(Prepare, AnExceptionFromProgress_LeavesNothing) {
  struct Interrupted {};
  const Setting setting;
  for (const char* phase : {"reading the corpus", "training the tokenizer", "tokenizing"}) {
    const auto interrupt = [&](std::string_view now, uint64_t, uint64_t) {
      if (now == phase) throw Interrupted();
    };
    EXPECT_THROW(prepare_corpus(setting.data, setting.cache(), interrupt), Interrupted) << phase;
    EXPECT_EQ(setting.prepared_entries(), 0U) << phase;
  }
}

TEST(Prepare, TheNumberOfThreadsDoesNotChangeTheResult) {
  const std::string id = Setting().prepare().id;
  for (const unsigned threads : {1U, 3U, 100U}) {
    const Setting setting;
    EXPECT_EQ(prepare_corpus(setting.data, setting.cache(), {}, threads).id, id) << threads;
  }
}

TEST(PrepareFaults, EveryDiskFaultLeavesACompleteCorpusOrNothingThatIsUsed) {
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
  test::FaultyFileSystem counting;
  std::string id;
  {
    const auto setting = setting_with_tokenizer();
    const ScopedFileSystem scoped(counting);
    id = setting->prepare().id;
  }
  ASSERT_GT(counting.operations().size(), 20U);
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
        said = user_error([&] { setting->prepare(); });
      }
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      std::error_code none;
      for (const auto& entry : fs::directory_iterator(setting->cache() / "prepared", none)) {
        const bool hidden = entry.path().filename().string().starts_with('.');
        EXPECT_TRUE(hidden || open_prepared(entry.path()).ok()) << entry.path();
      }
      test::FaultyFileSystem healthy;
      const ScopedFileSystem scoped(healthy);
      EXPECT_EQ(setting->prepare().id, id);
      EXPECT_EQ(setting->prepared_entries(), 1U);
    }
  }
}

// What a PrepareLine writes while `report` uses it.
template <class Report>
std::string written(bool live, ManualClock& clock, const Report& report) {
  const test::ScratchFolder folder;
  std::FILE* file = std::fopen((folder / "out").c_str(), "w");
  {
    PrepareLine line(file, live, clock);
    report(line);
  }
  std::fclose(file);
  return read_file(folder / "out").take();
}

TEST(PrepareLine, InAFilePrintsEachPhaseAndThenItsStateEveryFewSeconds) {
  ManualClock clock;
  const auto out = written(false, clock, [&](PrepareLine& line) {
    line("reading the corpus", 1'000'000, 0);
    for (int i = 1; i <= 11; ++i) {
      clock.advance(seconds(1));
      line("reading the corpus", 1'000'000 * (1 + static_cast<uint64_t>(i)), 0);
    }
    line("tokenizing", 2'000'000, 100'000'000);
    clock.advance(seconds(8));
    line("tokenizing", 18'000'000, 100'000'000);
  });
  EXPECT_EQ(out,
            "data: reading the corpus\n"
            "data: reading the corpus 6.0 MB, 1.0 MB/s\n"
            "data: reading the corpus 11.0 MB, 1.0 MB/s\n"
            "data: tokenizing\n"
            "data: tokenizing 18.0 of 100.0 MB, 2.0 MB/s, 42s left\n");
}

TEST(PrepareLine, OnATerminalRewritesOneLineAndRemovesIt) {
  ManualClock clock;
  const auto out = written(true, clock, [&](PrepareLine& line) {
    line("tokenizing", 0, 10'000'000);
    clock.advance(milliseconds(99));
    line("tokenizing", 1'000'000, 10'000'000);  // too soon
    clock.advance(milliseconds(901));
    line("tokenizing", 5'000'000, 10'000'000);
  });
  EXPECT_EQ(out,
            "data: tokenizing 0.0 of 10.0 MB"
            "\r\033[Kdata: tokenizing 5.0 of 10.0 MB, 5.0 MB/s, 2s left"
            "\r\033[K");
}

TEST(PrepareLine, PrintsNothingWithoutAReport) {
  ManualClock clock;
  EXPECT_EQ(written(true, clock, [](PrepareLine&) {}), "");
  EXPECT_EQ(written(false, clock, [](PrepareLine& line) { line("waiting", 0, 0); }), "data: waiting\n");
}

}  // namespace
}  // namespace thinpipe
