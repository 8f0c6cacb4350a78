// Compressed files against the same text without compression, and every way in which they can be damaged or hostile.
#include "text/decompression.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "support/scratch.h"
#include "support/shell.h"
#include "text/compressed.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

using namespace std::string_view_literals;
using test::ScratchFolder;
using test::write_file;
using Pieces = std::vector<std::string>;

constexpr size_t kPieceBytes = 256 << 10;

struct Format {
  std::string_view ending;
  std::function<std::string(std::string_view)> compress;
};
const Format kFormats[] = {{".gz", test::gzip}, {".zst", test::zstd}};

// What a file holds, piece by piece; the last one is the error, if there is one.
Pieces pieces_of(const std::filesystem::path& path) {
  Pieces pieces;
  const auto bytes = read_bytes_of(path);
  while (true) {
    const auto piece = bytes->next();
    if (!piece) pieces.push_back("error: " + piece.error().message);
    if (!piece || piece.value().empty()) return pieces;
    pieces.emplace_back(piece.value());
  }
}

std::filesystem::path file_of(const ScratchFolder& folder, std::string_view ending, std::string_view bytes) {
  const auto path = folder / ("a.txt" + std::string(ending));
  write_file(path, bytes);
  return path;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(Decompression, MembersOfAnySize_GiveThePiecesOfThePlainFile) {
  const ScratchFolder folder;
  const std::string text = test::english(12000, 1);
  ASSERT_GT(text.size(), 2 * kPieceBytes);
  const auto plain = pieces_of(file_of(folder, "", text));
  for (const auto& [ending, compress] : kFormats) {
    EXPECT_EQ(pieces_of(file_of(folder, ending, compress(text))), plain) << ending;
    std::string members = compress("");
    for (const char one : text.substr(0, 300)) members += compress({&one, 1});
    members += compress("") + compress(text.substr(300, kPieceBytes - 300));  // ends where a piece does
    members += compress(text.substr(kPieceBytes)) + compress("");
    EXPECT_EQ(pieces_of(file_of(folder, ending, members)), plain) << ending;
    EXPECT_EQ(pieces_of(file_of(folder, ending, compress(""))), Pieces{}) << ending;
  }
  const std::string skipped = "\x5A\x2A\x4D\x18\x03" + std::string(3, '\0') + "xyz";
  const std::string frames = skipped + test::zstd(text) + skipped;
  EXPECT_EQ(pieces_of(file_of(folder, ".zst", frames)), plain);
}

TEST(Decompression, FileThatGzipWrote_IsReadAsItsText) {
  const ScratchFolder folder;
  const auto plain = file_of(folder, "", test::english(3000, 1));
  const auto packed = folder / "b.txt.gz";
  const auto command =
      fmt::format("(gzip -c '{}'; gzip -1c '{}') > '{}'", plain.string(), plain.string(), packed.string());
  ASSERT_EQ(test::output_of(command).first, 0);
  std::string text;
  for (const auto& piece : pieces_of(packed)) text += piece;
  EXPECT_EQ(text, test::english(3000, 1) + test::english(3000, 1));
}

TEST(Decompression, EveryTruncation_IsNamedWithItsByte) {
  const ScratchFolder folder;
  for (const auto& [ending, compress] : kFormats) {
    const std::string whole = compress(test::english(2, 1));
    for (size_t size = 0; size < whole.size(); ++size) {
      const auto path = file_of(folder, ending, whole.substr(0, size));
      const auto pieces = pieces_of(path);
      ASSERT_EQ(pieces.size(), 1U);
      EXPECT_TRUE(pieces[0].starts_with(fmt::format("error: {}: byte {}, after ", path.string(), size))) << pieces[0];
      EXPECT_TRUE(has(pieces[0], " data is cut short; copy or download the file again")) << pieces[0];
    }
  }
}

TEST(Decompression, CutShortInALaterMember_SaysHowFarItGot) {
  const ScratchFolder folder;
  const std::string text = test::english(12000, 1);
  for (const auto& [ending, compress] : kFormats) {
    const std::string first = compress(text);
    const auto path = file_of(folder, ending, first + compress("more").substr(0, 6));
    EXPECT_EQ(pieces_of(path).back(),
              fmt::format("error: {}: byte {}, after {} bytes of text: the {} data is cut short; copy or download the "
                          "file again",
                          path.string(), first.size() + 6, text.size(), ending == ".gz" ? "gzip" : "zstd"));
  }
}

TEST(Decompression, FlippedByte_IsAnErrorOrChangesNothing) {
  const ScratchFolder folder;
  const std::string text = test::english(2, 1);
  for (const auto& [ending, compress] : kFormats) {
    const std::string whole = compress(text);
    size_t errors = 0, flips = 0;
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int flip : {0x01, 0x80}) {
        std::string bytes = whole;
        bytes[at] = static_cast<char>(bytes[at] ^ flip);
        const auto pieces = pieces_of(file_of(folder, ending, bytes));
        ASSERT_FALSE(pieces.empty());
        const bool refused = pieces.back().starts_with("error: ");
        errors += refused ? 1 : 0;
        ++flips;
        EXPECT_TRUE(refused || pieces == Pieces{text}) << ending << " " << at;
      }
    }
    EXPECT_GT(errors, flips * 9 / 10) << ending;
  }
}

TEST(Decompression, Bomb_IsRefusedAtItsBound) {
  const ScratchFolder folder;
  for (const auto& [ending, bytes] : {std::pair{".gz"sv, test::gzip(std::string(16 << 20, '\0'))},
                                      std::pair{".zst"sv, test::zstd_bomb(1 << 20)}}) {  // of 128 GiB
    const auto path = file_of(folder, ending, bytes);
    const auto pieces = pieces_of(path);
    ASSERT_FALSE(pieces.empty());
    EXPECT_TRUE(has(pieces.back(), "holds more than 100 times the size of the file")) << pieces.back();
    EXPECT_TRUE(has(pieces.back(), fmt::format("unpack it with `{} -d` first", ending == ".gz" ? "gzip" : "zstd")))
        << pieces.back();
    EXPECT_LE((pieces.size() - 1) * kPieceBytes, 100 * bytes.size() + (1 << 20)) << ending;
    EXPECT_GE(pieces.size() * kPieceBytes, 100 * bytes.size() + (1 << 20)) << ending;
  }
  // Tiny files may be as repetitive as they like.
  const std::string same(1 << 20, 'x');
  for (const auto& [ending, compress] : kFormats) {
    EXPECT_EQ(pieces_of(file_of(folder, ending, compress(same))), Pieces(4, same.substr(0, kPieceBytes)));
  }
}

TEST(Decompression, ZstdWindowAboveTheLimit_IsRefused) {
  const ScratchFolder folder;
  EXPECT_EQ(pieces_of(file_of(folder, ".zst", test::zstd_with_window(kMostZstdWindowLog))), Pieces{"hello"});
  const auto path = file_of(folder, ".zst", test::zstd_with_window(kMostZstdWindowLog + 1));
  const auto said = pieces_of(path).at(0);
  EXPECT_TRUE(said.starts_with("error: " + path.string() + ": byte ")) << said;
  EXPECT_TRUE(has(said, "needs a window above 128 MiB; compress the text again without --long")) << said;
}

TEST(Decompression, NameThatDoesNotFit_IsSaid) {
  const ScratchFolder folder;
  for (const auto& [ending, bytes, kind] :
       {std::tuple{".gz", std::string("plain words"), "gzip"}, std::tuple{".gz", test::zstd("words"), "gzip"},
        std::tuple{".zst", std::string("PK"), "zstd"}, std::tuple{".zst", test::gzip("words"), "zstd"}}) {
    const auto path = file_of(folder, ending, bytes);
    EXPECT_EQ(pieces_of(path), Pieces{fmt::format("error: {}: is named {} but is not compressed by {}; if it is text, "
                                                  "rename it without {}",
                                                  path.string(), ending, kind, ending)});
  }
}

TEST(Decompression, WhateverFollowsTheText_IsSaid) {
  const ScratchFolder folder;
  for (const auto& [ending, compress] : kFormats) {
    const auto path = file_of(folder, ending, compress("words") + "\n<html> 404");
    const auto said = pieces_of(path).back();
    EXPECT_TRUE(has(said, "after 5 bytes of text: the ") && has(said, " data is damaged (")) << said;
  }
}

TEST(Decompression, FileThatCannotBeRead_IsNamedAsWithoutCompression) {
  const ScratchFolder folder;
  for (const auto& format : kFormats) {
    const auto path = folder / ("gone" + std::string(format.ending));
    EXPECT_EQ(pieces_of(path), Pieces{"error: cannot read " + path.string() + ": No such file or directory"});
  }
}

}  // namespace
}  // namespace thinpipe
