// Decoding against Python's codecs, whole and byte by byte, and files in every encoding, good and bad.
#include "text/decoding.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/scratch.h"
#include "support/shell.h"
#include "text/prepare_setting.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

using namespace std::string_view_literals;
using test::documents;
using test::ScratchFolder;
using test::user_error;
using test::write_file;
using Documents = std::vector<std::string>;

struct Decoded {
  bool ok = true;
  std::string text;
  uint64_t invalid = 0;
};

Decoded decoded(Encoding encoding, Invalid invalid, std::string_view bytes, size_t piece) {
  Decoder decoder(encoding, invalid);
  Decoded result;
  for (; !bytes.empty() && result.ok; bytes.remove_prefix(std::min(piece, bytes.size()))) {
    result.ok = decoder.decode(bytes.substr(0, piece), false, result.text);
  }
  if (result.ok) result.ok = decoder.decode({}, true, result.text);
  result.invalid = decoder.invalid_count();
  return result;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char one : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(one));
  return text;
}

// Bytes that are often, but not always, the beginning of something valid.
std::string random_bytes(uint64_t number) {
  static constexpr std::string_view kParts[] = {"\xC3",     "\xE0",     "\xA0",     "\x80", "\xED", "\xBF",
                                                "\xF0\x90", "\xF4\x8F", "\xF4\x90", "\xF8", "\xC0", "\xFF",
                                                "\xD8",     "\xDC",     "a\n",      "\0"sv};
  const CounterRng rng(number, "random bytes");
  uint64_t draw = 0;
  std::string bytes;
  for (uint64_t parts = test::below(rng, 12, draw++); parts > 0; --parts) {
    const auto kind = test::below(rng, 3, draw++);
    if (kind == 0) bytes += test::random_piece(rng, draw);
    if (kind == 1) bytes += kParts[test::below(rng, std::size(kParts), draw++)];
    if (kind == 2) bytes += static_cast<char>(test::below(rng, 256, draw++));
  }
  return bytes;
}

TEST(Decoding, RandomBytes_BecomeWhatPythonsCodecsMakeOfThem) {
  constexpr uint64_t kCases = 400;
  const ScratchFolder folder;
  std::string inputs;
  for (uint64_t i = 0; i < kCases; ++i) inputs += hex(random_bytes(i)) + "\n";
  write_file(folder / "inputs", inputs);
  write_file(folder / "decode.py",
             "import json, sys\n"
             "def all_of(b):\n"
             "  for codec, mark in (('utf-8-sig', b''), ('utf-16', b'\\xff\\xfe'), ('utf-16', b'\\xfe\\xff'), "
             "('latin-1', b'')):\n"
             "    for errors in ('replace', 'ignore'):\n"
             "      yield (mark + b).decode(codec, errors).encode('utf-8').hex()\n"
             "print(json.dumps([list(all_of(bytes.fromhex(l.strip()))) for l in open(sys.argv[1])]))\n");
  const auto expected = test::json_printed_by(
      fmt::format("python3 '{}' '{}'", (folder / "decode.py").string(), (folder / "inputs").string()));
  ASSERT_EQ(expected.size(), kCases) << expected.dump().substr(0, 300);
  const std::pair<Encoding, std::string_view> forms[] = {
      {Encoding::kUtf8, ""}, {Encoding::kUtf16, "\xFF\xFE"}, {Encoding::kUtf16, "\xFE\xFF"}, {Encoding::kLatin1, ""}};
  for (uint64_t i = 0; i < kCases; ++i) {
    for (size_t form = 0; form < std::size(forms); ++form) {
      const auto& [encoding, mark] = forms[form];
      const std::string bytes = std::string(mark) + random_bytes(i);
      for (const size_t piece : {bytes.size() + 1, size_t{1}, size_t{3}}) {
        const auto replaced = decoded(encoding, Invalid::kReplace, bytes, piece);
        const auto skipped = decoded(encoding, Invalid::kSkip, bytes, piece);
        EXPECT_EQ(hex(replaced.text), expected[i][2 * form].get<std::string>())
            << hex(bytes) << " in pieces of " << piece;
        EXPECT_EQ(hex(skipped.text), expected[i][2 * form + 1].get<std::string>())
            << hex(bytes) << " in pieces of " << piece;
        EXPECT_EQ(replaced.invalid, (replaced.text.size() - skipped.text.size()) / 3) << hex(bytes);
      }
    }
  }
}

Documents read_as(const std::filesystem::path& path, Encoding encoding, Invalid invalid = Invalid::kRefuse) {
  return documents(Corpus::open(path, "data.corpus", {encoding, invalid}));
}

TEST(Decoding, FilesThatIconvWrote_AreReadAsTheTextTheyCameFrom) {
  const ScratchFolder folder;
  const std::string text = "gr\u00FC\u00DFe, \u00A7 5\r\nna\u00EFve \u00FF\n" + test::english(3000, 1) + "\u00E9";
  write_file(folder / "utf8.txt", text);
  const auto convert = [&](const std::string& encoding) {
    const auto path = folder / (encoding + ".txt");
    EXPECT_EQ(test::output_of(fmt::format("iconv -f UTF-8 -t {} '{}' > '{}'", encoding, (folder / "utf8.txt").string(),
                                          path.string()))
                  .first,
              0);
    return path;
  };
  const auto joined = [](const Documents& parts) {
    std::string all;
    for (const auto& part : parts) all += part;
    return all;
  };
  EXPECT_EQ(joined(read_as(convert("ISO-8859-1"), Encoding::kLatin1)), text);
  for (const std::string encoding : {"UTF-16", "UTF-16LE", "UTF-16BE"}) {
    EXPECT_EQ(joined(read_as(convert(encoding), Encoding::kUtf16)), text) << encoding;
    EXPECT_EQ(joined(read_as(convert(encoding), Encoding::kAuto)), text) << encoding;
  }
  EXPECT_EQ(joined(read_as(folder / "ISO-8859-1.txt", Encoding::kAuto)), text);
  EXPECT_EQ(joined(read_as(folder / "utf8.txt", Encoding::kAuto)), text);
}

TEST(Decoding, ByteOrderMark_IsDropped_LineEndsAndNulAreKept) {
  const ScratchFolder folder;
  write_file(folder / "a.txt", "\xEF\xBB\xBFone\r\ntwo\r\n\0three\n"sv);
  EXPECT_EQ(read_as(folder / "a.txt", Encoding::kUtf8), Documents{std::string("one\r\ntwo\r\n\0three\n"sv)});
  write_file(folder / "b.jsonl", "\xEF\xBB\xBF{\"text\": \"one\"}\r\n{\"text\": \"two\"}\r\n");
  EXPECT_EQ(read_as(folder / "b.jsonl", Encoding::kUtf8), (Documents{"one", "two"}));
  write_file(folder / "empty.txt", "");
  EXPECT_EQ(read_as(folder / "empty.txt", Encoding::kAuto), Documents{});
}

TEST(Decoding, Utf16WhereUtf8IsExpected_NamesTheKeyThatHelps) {
  const ScratchFolder folder;
  const std::string path = folder / "a.txt";
  for (const auto text : {"\xFF\xFEh\0i\0"sv, "h\0e\0l\0l\0o\0"sv, "\0h\0e\0l\0l\0o"sv}) {
    write_file(path, text);
    EXPECT_EQ(read_as(path, Encoding::kUtf8),
              Documents{"error: " + path +
                        ": looks like UTF-16, not UTF-8; set data.encoding = \"utf-16\", or \"auto\" if files differ"});
  }
  write_file(path, "\xFF\xFEh\0\0\xD8i\0"sv);
  EXPECT_EQ(read_as(path, Encoding::kUtf16),
            Documents{"error: " + path +
                      ": byte 4: invalid UTF-16; set data.invalid = \"replace\" or \"skip\" to read it all the same"});
  EXPECT_EQ(read_as(path, Encoding::kUtf16, Invalid::kReplace), Documents{"h\uFFFDi"});
}

TEST(Decoding, FilesThatAreNotText_AreNamedAsWhatTheyAre) {
  const ScratchFolder folder;
  const std::string path = folder / "a.txt";
  for (const auto& [bytes, what] : {std::pair{"%PDF-1.7\n\xE2\xE3"sv, "a PDF"},
                                    {"PK\x03\x04rest"sv, "a zip archive"},
                                    {"\x7F"
                                     "ELF\x02\x01"sv,
                                     "a program"},
                                    {"\x1F\x8B\x08"sv, "compressed by gzip"}}) {
    write_file(path, bytes);
    for (const auto encoding : {Encoding::kUtf8, Encoding::kLatin1, Encoding::kAuto}) {
      const auto said = read_as(path, encoding).at(0);
      EXPECT_TRUE(said.starts_with("error: " + path + ": is not text but ") && said.find(what) != std::string::npos)
          << said;
    }
  }
  write_file(path, "\x01\0\0\xFF\x80\x03"sv);
  EXPECT_EQ(read_as(path, Encoding::kAuto), Documents{"error: " + path +
                                                      ": is neither UTF-8 nor UTF-16 and holds NUL bytes, so it is not "
                                                      "text; set data.encoding = \"latin-1\" to read "
                                                      "it all the same"});
}

TEST(Decoding, FolderWithADanglingLinkOrAPipe_IsRefusedByItsName) {
  const ScratchFolder folder;
  write_file(folder / "a.txt", "text");
  std::filesystem::create_symlink(folder / "gone", folder / "link.txt");
  EXPECT_EQ(user_error([&] { Corpus::open(folder.path()); }),
            "data.corpus: " + (folder / "link.txt").string() +
                " is a link to nothing that can be read; take it away, or give the files one by one");
  std::filesystem::remove(folder / "link.txt");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(
      user_error([&] { Corpus::open(folder.path()); }),
      "data.corpus: " + (folder / "pipe").string() + " is not a file; take it away, or give the files one by one");
}

TEST(Decoding, PreparingTextWithInvalidBytes_CountsThemAndChangesNothingElse) {
  test::Setting setting(test::english(800, 1) + "bad \xFF\xC3( bytes\n", "a.txt");
  const auto said = setting.error();
  for (const auto* part :
       {"line 801 (byte ", "invalid UTF-8", "data.encoding = \"auto\"", "data.invalid = \"replace\""}) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
  setting.data.invalid = Invalid::kReplace;
  EXPECT_EQ(setting.prepare().invalid, 2U);
  EXPECT_EQ(setting.prepare().invalid, 2U) << "also when it was prepared already";
  EXPECT_EQ(invalid_line(setting.data, 2),
            "note: 2 invalid sequence(s) of bytes in the text were replaced by U+FFFD (data.invalid)");
  // The same as for a text in which somebody replaced them by hand.
  const test::Setting by_hand(test::english(800, 1) + "bad \uFFFD\uFFFD( bytes\n", "a.txt");
  EXPECT_EQ(setting.prepare().id, by_hand.prepare().id);
  EXPECT_EQ(by_hand.prepare().invalid, 0U);
}

}  // namespace
}  // namespace thinpipe
