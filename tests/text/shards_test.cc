// The shard format byte by byte, and files that are not one.
#include "text/shards.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include "support/draw.h"
#include "support/scratch.h"
#include "text/sampler.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;

std::string shard_bytes(std::span<const int32_t> tokens, int64_t vocab) {
  const ScratchFolder folder;
  auto writer = TokenShardWriter::create(folder / "x.bin", vocab).take();
  writer.append(tokens).take();
  writer.finish().take();
  return read_file(folder / "x.bin").take();
}

std::string refusal(std::string_view bytes) {
  // A copy of exactly that size, so that a read past the end is caught by the sanitizer.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  const std::string_view header(exact.data(), std::min(exact.size(), kShardHeaderBytes));
  const auto parsed = parse_shard_header(header, exact.size(), "x.bin");
  return parsed ? "(accepted)" : parsed.error().message;
}

const std::vector<int32_t> kTokens = {0, 1, 2, 300, 4095, 7};

TEST(TokenShard, WritesTheFormatOfLlmC) {
  std::string expected(1024, '\0');
  const int32_t header[] = {20240520, 1, 3};
  std::memcpy(expected.data(), header, sizeof header);
  const std::vector<int32_t> tokens = {1, 0x1234, 65535};
  EXPECT_EQ(shard_bytes(tokens, 65536), expected + std::string("\x01\x00\x34\x12\xFF\xFF", 6));

  const int32_t wide_header[] = {20240801, 7, 3};
  std::memcpy(expected.data(), wide_header, sizeof wide_header);
  EXPECT_EQ(shard_bytes(tokens, 65537), expected + std::string("\x01\x00\x00\x00\x34\x12\x00\x00\xFF\xFF\x00\x00", 12));
}

TEST(TokenShard, ReadsBackWhatWasAppendedInParts) {
  for (const int64_t vocab : {4096, 100'000}) {
    const ScratchFolder folder;
    auto writer = TokenShardWriter::create(folder / "x.bin", vocab).take();
    std::vector<int32_t> tokens;
    const CounterRng rng(1, "tokens");
    // More than the writer holds back before it writes.
    for (uint64_t i = 0; i < 700'000; ++i) tokens.push_back(static_cast<int32_t>(test::below(rng, vocab, i)));
    for (size_t start = 0; start < tokens.size(); start += 99'999) {
      writer.append(std::span(tokens).subspan(start, std::min<size_t>(99'999, tokens.size() - start))).take();
    }
    EXPECT_EQ(writer.tokens(), tokens.size());
    writer.finish().take();
    EXPECT_EQ(folder.file_count(), 1U);

    const auto shard = TokenShard::open(folder / "x.bin").take();
    ASSERT_EQ(shard.size(), tokens.size());
    std::vector<int32_t> all(tokens.size());
    shard.read(0, all).take();
    EXPECT_EQ(all, tokens);
    std::vector<int32_t> part(3);
    shard.read(tokens.size() - 3, part).take();
    EXPECT_EQ(part, std::vector<int32_t>(tokens.end() - 3, tokens.end()));
    shard.read(12345, part).take();
    EXPECT_EQ(part[0], tokens[12345]);
    shard.read(tokens.size(), {}).take();
    EXPECT_TRUE(shard.check_ids_below(vocab).ok());
  }
}

TEST(TokenShard, MayBeEmpty) { EXPECT_EQ(refusal(shard_bytes({}, 10)), "(accepted)"); }

TEST(TokenShard, AppearsWhenItIsFinishedOrNotAtAll) {
  const ScratchFolder folder;
  {
    auto writer = TokenShardWriter::create(folder / "x.bin", 4096).take();
    writer.append(kTokens).take();
    EXPECT_FALSE(std::filesystem::exists(folder / "x.bin"));
  }
  EXPECT_EQ(folder.file_count(), 0U);
}

TEST(TokenShard, EveryTruncationAndExtensionIsRefused) {
  for (const int64_t vocab : {4096, 100'000}) {
    const std::string good = shard_bytes(kTokens, vocab);
    for (size_t length = 0; length < good.size(); ++length) {
      ASSERT_TRUE(refusal(good.substr(0, length)).starts_with("x.bin: not a token shard: ")) << length;
    }
    EXPECT_TRUE(refusal(good + '\0').starts_with("x.bin: not a token shard: "));
  }
}

TEST(TokenShard, EveryChangeOfTheHeaderIsRefused) {
  const std::string good = shard_bytes(kTokens, 4096);
  ASSERT_EQ(refusal(good), "(accepted)");
  for (size_t offset = 0; offset < kShardHeaderBytes; ++offset) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = good;
      changed[offset] = static_cast<char>(changed[offset] ^ (1 << bit));
      ASSERT_NE(refusal(changed), "(accepted)") << offset << " " << bit;
    }
  }
}

TEST(TokenShard, SaysWhatIsWrongWithAFile) {
  const std::string good = shard_bytes(kTokens, 4096);
  const auto with = [&](size_t index, int32_t value) {
    std::string changed = good;
    std::memcpy(changed.data() + 4 * index, &value, sizeof value);
    return refusal(changed);
  };
  EXPECT_EQ(refusal("hello"), "x.bin: not a token shard: 5 bytes, and the header alone has 1024");
  EXPECT_EQ(refusal(std::string(2000, 'a')), "x.bin: not a token shard: magic is 1633771873, not 20240520 or 20240801");
  EXPECT_EQ(with(1, 2), "x.bin: not a token shard: version is 2; with magic 20240520 only 1 is known");
  EXPECT_EQ(with(2, -1), "x.bin: not a token shard: the header counts -1 tokens");
  EXPECT_EQ(with(2, 7), "x.bin: not a token shard: 1036 bytes, where the header's 7 tokens make 1038");
  // The largest count there is must not wrap around to something that fits.
  EXPECT_EQ(with(2, INT32_MAX),
            "x.bin: not a token shard: 1036 bytes, where the header's 2147483647 tokens make 4294968318");
  EXPECT_EQ(with(255, 1), "x.bin: not a token shard: the header's unused part is not zero");
}

TEST(TokenShard, NamesAFileItCannotOpen) {
  const ScratchFolder folder;
  EXPECT_EQ(TokenShard::open(folder / "no.bin").error().message,
            "cannot read " + (folder / "no.bin").string() + ": No such file or directory");
  EXPECT_FALSE(TokenShard::open(folder.path()).ok());
  EXPECT_FALSE(TokenShardWriter::create(folder / "no/x.bin", 10).ok());
}

TEST(TokenShard, RefusesAPipeThatNobodyWritesToWithoutWaiting) {
  const ScratchFolder folder;
  const auto path = (folder / "x.bin").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(TokenShard::open(path).error().message, fmt::format("cannot read {}: it is not a regular file", path));
}

TEST(TokenShard, AnIdBeyondTheVocabularyIsFoundWhereverItIs) {
  const ScratchFolder folder;
  std::string bytes = shard_bytes(std::vector<int32_t>(200'000, 5), 100'000);
  bytes[1024 + 4 * 150'000 + 3] = '\xFF';  // negative as an int32, and in a later block
  test::write_file(folder / "x.bin", bytes);
  const auto shard = TokenShard::open(folder / "x.bin").take();
  EXPECT_EQ(
      shard.check_ids_below(100'000).error().message,
      (folder / "x.bin").string() + ": token 4278190085 at position 150000 is not below the vocabulary of 100000");
  EXPECT_EQ(shard.check_ids_below(5).error().message,
            (folder / "x.bin").string() + ": token 5 at position 0 is not below the vocabulary of 5");
}

TEST(TokenShard, SaysThatAFileWasCutShortWhileItWasRead) {
  const ScratchFolder folder;
  test::write_file(folder / "x.bin", shard_bytes(kTokens, 4096));
  const auto shard = TokenShard::open(folder / "x.bin").take();
  std::filesystem::resize_file(folder / "x.bin", 1024 + 6);
  std::vector<int32_t> out(3);
  EXPECT_TRUE(shard.read(0, out).ok());
  EXPECT_EQ(shard.read(1, out).error().message,
            (folder / "x.bin").string() + ": has been cut short since it was opened");
  EXPECT_FALSE(shard.check_ids_below(4096).ok());
}

// "VmRSS" of this process, in bytes.
uint64_t resident_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1)) * 1024;
  }
  ADD_FAILURE() << "no " << field;
  return 0;
}

TEST(TokenShard, WindowsFromAllOverAGigabyteLeaveNothingInMemory) {
#ifdef THINPIPE_SANITIZED
  GTEST_SKIP() << "a sanitizer has a memory of its own";
#endif
  constexpr uint64_t kTokenCount = 500'000'000;
  // The windows of 20'000 places, had they stayed, are at least 160 MB.
  constexpr uint64_t kAllowedBytes = 32 << 20;
  const ScratchFolder folder;
  const int32_t header[] = {20240520, 1, static_cast<int32_t>(kTokenCount)};
  test::write_file(folder / "x.bin", {reinterpret_cast<const char*>(header), sizeof header});
  // A hole: it reads as token 0 and takes no room on the disk.
  std::filesystem::resize_file(folder / "x.bin", 1024 + 2 * kTokenCount);
  const auto shard = TokenShard::open(folder / "x.bin").take();
  constexpr uint64_t kSeqLen = 4096;
  std::vector<int32_t> window(kSeqLen + 1, 1);
  const KeyedPermutation order(1, 0, (kTokenCount - 1) / kSeqLen);
  const uint64_t before = resident_bytes("VmRSS");
  uint64_t sum = 0;
  for (uint64_t number = 0; number < 20'000; ++number) {
    read_window(shard, order(number), window).take();
    sum += static_cast<uint64_t>(window.front() + window.back());
  }
  EXPECT_EQ(sum, 0U);
  EXPECT_LT(resident_bytes("VmRSS"), before + kAllowedBytes);
}

TEST(TokenShardDeathTest, RefusesWhatOnlyAFaultOfOursCanAsk) {
  const ScratchFolder folder;
  test::write_file(folder / "x.bin", shard_bytes(kTokens, 4096));
  const auto shard = TokenShard::open(folder / "x.bin").take();
  std::vector<int32_t> out(4);
  EXPECT_DEATH((void)shard.read(3, out), "tokens 3 to 7 of a shard of 6");
  EXPECT_DEATH((void)shard.read(UINT64_MAX, out), "of a shard of 6");
  EXPECT_DEATH(shard_bytes(kTokens, 4095), "token 4095 is not below");
}

}  // namespace
}  // namespace thinpipe
