#include "base/sha256.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

// FIPS 180-4's examples and the empty message.
TEST(Sha256, MatchesTheStandardsExamples) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, HashOfPiecesEqualsHashOfTheWhole) {
  const std::string text = "a sentence cut into pieces of every length";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 hash;
    hash.update(std::string_view(text).substr(0, cut));
    Sha256 moved = std::move(hash);
    moved.update(std::string_view(text).substr(cut));
    EXPECT_EQ(moved.hex(), sha256_hex(text));
  }
}

TEST(Sha256, HashOfAFileEqualsHashOfItsBytes) {
  const test::ScratchFolder folder;
  for (const size_t size : {size_t{0}, size_t{3}, size_t{1} << 20, (size_t{1} << 20) + 1}) {
    const std::string bytes(size, 'x');
    ASSERT_TRUE(write_file_atomically(folder / "a", bytes).ok());
    EXPECT_EQ(sha256_of_file(folder / "a").value(), sha256_hex(bytes));
  }
  EXPECT_EQ(sha256_of_file(folder / "none").error().message,
            fmt::format("cannot read {}/none: No such file or directory", folder.path().string()));
  EXPECT_FALSE(sha256_of_file(folder.path()).ok());
}

}  // namespace
}  // namespace thinpipe
