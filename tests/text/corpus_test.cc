// Every kind of source, cut into documents, and every way a source can be wrong.
#include "text/corpus.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <numeric>

#include "base/line.h"
#include "support/scratch.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

using namespace std::string_view_literals;
using test::documents;
using test::encoded;
using test::ScratchFolder;
using test::user_error;
using test::write_file;
using Documents = std::vector<std::string>;

const std::string kHelp =
    "; set data.encoding = \"auto\" or \"latin-1\" for another encoding, or data.invalid = \"replace\" or \"skip\"";

// The output of `action` in a child process that has given up root's right to read everything.
template <class Action>
std::string said_as_nobody(const Action& action) {
  constexpr uid_t kNobody = 65534;
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "(no pipe)";
  const pid_t child = ::fork();
  if (child == 0) {
    const bool dropped =
        ::geteuid() != 0 || (::setgroups(0, nullptr) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
                             ::setresuid(kNobody, kNobody, kNobody) == 0);
    std::string said = "(cannot become nobody)";
    try {
      if (dropped) said = action();
    } catch (const std::exception& error) {  // must not return into the parent's tests
      said = error.what();
    }
    ::_exit(::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return said;
}

std::string joined(const Documents& parts) { return std::accumulate(parts.begin(), parts.end(), std::string()); }

TEST(Corpus, CutsAPlainFileAtLineEndsAndLosesNothing) {
  const ScratchFolder folder;
  const std::string text = test::english(5000, 1);
  write_file(folder / "a.txt", text);
  const auto parts = documents(Corpus::open(folder / "a.txt"));
  ASSERT_EQ(parts.size(), text.size() / (32 << 10) + 1);
  EXPECT_EQ(joined(parts), text);
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    EXPECT_EQ(parts[i].back(), '\n');
    EXPECT_GE(parts[i].size(), size_t{32 << 10});
    EXPECT_LT(parts[i].size(), size_t{33 << 10});
  }
}

TEST(Corpus, CutsAnEndlessLineBetweenCharacters) {
  const ScratchFolder folder;
  std::string text = "x";
  while (text.size() < 300'000) text += "\U0001F600";
  write_file(folder / "a.txt", text);
  const auto parts = documents(Corpus::open(folder / "a.txt"));
  EXPECT_EQ(joined(parts), text);
  EXPECT_EQ(parts.size(), 5U);
  for (const auto& part : parts) EXPECT_EQ(valid_utf8_prefix(part), part.size());
}

TEST(Corpus, KeepsEveryByteOfOddText) {
  const ScratchFolder folder;
  const std::string text = "  \uFEFFa\r\n\r\n\tb" + std::string(1, '\0') + "c\n\n\n";
  write_file(folder / "a", text);
  EXPECT_EQ(documents(Corpus::open(folder / "a")), Documents{text});
}

TEST(Corpus, ReadsOneDocumentPerJsonLine) {
  const ScratchFolder folder;
  write_file(folder / "a.jsonl",
             "{\"text\": \"one\\ntwo \\u00e9 \\ud83d\\ude00\"}\r\n\n"
             "{\"id\": [1, {\"text\": 5}], \"text\": \"three\", \"meta\": {\"text\": \"no\"}}\n"
             "{\"text\": \"\"}\n  \n"
             "{\"text\":\"last\"}");
  EXPECT_EQ(documents(Corpus::open(folder / "a.jsonl")), (Documents{"one\ntwo \u00e9 \U0001F600", "three", "last"}));
}

TEST(Corpus, CutsALongJsonDocument) {
  const ScratchFolder folder;
  const std::string line(999, 'x');
  std::string text;
  while (text.size() < 600'000) text += line + "\n";
  std::string escaped;
  for (const char c : text) escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
  write_file(folder / "a.jsonl", "{\"text\": \"" + escaped + "\"}\n");
  const auto parts = documents(Corpus::open(folder / "a.jsonl"));
  EXPECT_EQ(parts.size(), 3U);
  EXPECT_EQ(joined(parts), text);
}

TEST(Corpus, WalksAFolderInTheOrderOfPathsWithoutHiddenFiles) {
  const ScratchFolder folder;
  write_file(folder / "b.txt", "4");
  write_file(folder / "a/z.txt", "2");
  write_file(folder / "a/inner/x.md", "1");
  write_file(folder / "a.jsonl", "{\"text\": \"0\"}\n");
  write_file(folder / "b/c.jsonl", "{\"text\": \"5\"}\n{\"text\": \"6\"}\n");
  write_file(folder / "b.empty", "");
  write_file(folder / ".hidden.txt", "no");
  write_file(folder / ".git/objects.txt", "no");
  // Sorted as bytes: '.' comes before '/'.
  EXPECT_EQ(documents(Corpus::open(folder.path())), (Documents{"0", "1", "2", "4", "5", "6"}));
}

TEST(Corpus, DoesNotFollowAFolderThatLinksToItself) {
  const ScratchFolder folder;
  write_file(folder / "a.txt", "text");
  std::filesystem::create_directory_symlink(folder.path(), folder / "loop");
  EXPECT_EQ(documents(Corpus::open(folder.path())), Documents{"text"});
}

TEST(Corpus, NamesFileLineAndByteOfInvalidUtf8) {
  const ScratchFolder folder;
  const std::string path = folder / "a.txt";
  write_file(path, "good\nbad \xC3(\n");
  EXPECT_EQ(documents(Corpus::open(path)), Documents{"error: " + path + ": line 2 (byte 9): invalid UTF-8" + kHelp});
  // Far after the first document, and truncated by the end of the file.
  const std::string text = test::english(5000, 1);
  write_file(path, text + "end \xF0\x9F\x98");
  EXPECT_EQ(documents(Corpus::open(path)),
            Documents{fmt::format("error: {}: line 5001 (byte {}): invalid UTF-8", path, text.size() + 4) + kHelp});
}

TEST(Corpus, AnErrorEndsTheReading) {
  const ScratchFolder folder;
  write_file(folder / "a.txt", "\xFF");
  write_file(folder / "b.txt", "fine");
  DocumentReader reader = Corpus::open(folder.path()).read();
  std::string document;
  EXPECT_FALSE(reader.next(document).ok());
  const auto after = reader.next(document);
  EXPECT_TRUE(after.ok() && !after.value());
}

TEST(Corpus, NamesTheJsonLineThatIsNotADocument) {
  const ScratchFolder folder;
  const std::string path = folder / "a.jsonl";
  write_file(path, "{\"text\": \"fine\"}\n{\"txt\": \"a\"}\n");
  EXPECT_EQ(
      documents(Corpus::open(path)),
      Documents{"error: " + path +
                ": line 2 (byte 17): an object without the field \"text\"; it has \"txt\"; set data.field to the one "
                "that holds the text"});
  EXPECT_EQ(documents(Corpus::open(path, "--text")),
            Documents{"error: " + path +
                      ": line 2 (byte 17): an object without the field \"text\"; it has \"txt\"; rename the one that "
                      "holds the text"});
  write_file(path, "{\"text\": \"fine\"}\n{\"text\": \"\xFF\"}\n");
  EXPECT_EQ(documents(Corpus::open(path)), Documents{"error: " + path + ": line 2 (byte 27): invalid UTF-8" + kHelp});
}

TEST(Corpus, RefusesAJsonLineTooLongToHold) {
  const ScratchFolder folder;
  write_file(folder / "a.jsonl", "{\"text\": \"fine\"}\n");
  // A sparse file: 65 MiB of zeros without a line end, without disk space.
  std::filesystem::resize_file(folder / "a.jsonl", 65 << 20);
  const auto parts = documents(Corpus::open(folder / "a.jsonl"));
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0], "error: " + (folder / "a.jsonl").string() + ": line 2 (byte 17): the line is longer than 64 MiB");
}

TEST(Corpus, RefusesASourceThatIsNotThere) {
  const ScratchFolder folder;
  const std::string missing = folder / "no/such.txt";
  EXPECT_EQ(user_error([&] { Corpus::open(missing); }),
            "data.corpus = \"" + missing +
                "\": No such file or directory; give \"kjv\", a text or .jsonl file, or a folder of them");
  EXPECT_EQ(user_error([&] { Corpus::open(folder.path()); }),
            "data.corpus: folder " + folder.path().string() +
                " has no files: needs text or .jsonl files, not hidden, in it or below it");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(user_error([&] { Corpus::open(folder / "pipe"); }),
            "data.corpus = \"" + (folder / "pipe").string() +
                "\" is neither a file nor a folder: give \"kjv\", a text or .jsonl file, or a folder of them");
}

TEST(Corpus, NamesAFileItMayNotRead) {
  const ScratchFolder folder;
  write_file(folder / "a.txt", "text");
  std::filesystem::permissions(folder / "a.txt", std::filesystem::perms::none);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  EXPECT_EQ(said_as_nobody([&] { return documents(Corpus::open(folder / "a.txt")).at(0); }),
            "error: cannot read " + (folder / "a.txt").string() + ": Permission denied");
}

TEST(Corpus, NamesAFolderItMayNotRead) {
  const ScratchFolder folder;
  write_file(folder / "shut/a.txt", "text");
  std::filesystem::permissions(folder / "shut", std::filesystem::perms::none);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  EXPECT_EQ(said_as_nobody([&] { return user_error([&] { Corpus::open(folder / "shut"); }); }),
            "data.corpus: cannot read folder " + (folder / "shut").string() + ": Permission denied");
  EXPECT_EQ(said_as_nobody([&] { return user_error([&] { Corpus::open(folder / "shut/a.txt"); }); }),
            "data.corpus = \"" + (folder / "shut/a.txt").string() +
                "\": Permission denied; give \"kjv\", a text or .jsonl file, or a folder of them");
  std::filesystem::permissions(folder / "shut", std::filesystem::perms::owner_all);
}

TEST(Corpus, NamesAFileThatVanished) {
  const ScratchFolder folder;
  write_file(folder / "a.txt", "text");
  const Corpus corpus = Corpus::open(folder / "a.txt");
  std::filesystem::remove(folder / "a.txt");
  EXPECT_EQ(documents(corpus),
            Documents{"error: cannot read " + (folder / "a.txt").string() + ": No such file or directory"});
}

std::string content_hash(const Documents& parts) {
  ContentHash hash;
  for (const auto& part : parts) hash.add(part);
  return hash.hex();
}

TEST(ContentHash, DependsOnWhereDocumentsEnd) {
  EXPECT_EQ(content_hash({"ab", "c"}), content_hash({"ab", "c"}));
  EXPECT_NE(content_hash({"ab", "c"}), content_hash({"a", "bc"}));
  EXPECT_NE(content_hash({"ab", "c"}), content_hash({"abc"}));
  EXPECT_NE(content_hash({"ab", "c"}), content_hash({"c", "ab"}));
  // sha256 of 01 00 00 00 00 00 00 00 61: part of the identity, so it must never change.
  EXPECT_EQ(content_hash({"a"}), sha256_hex(std::string("\x01\0\0\0\0\0\0\0a", 9)));
}

TEST(Utf8, AcceptsEveryScalarValueAndNothingElse) {
  for (uint32_t code = 0; code < 0x120000; ++code) {
    const bool scalar = code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
    const std::string text = "x" + encoded(code) + "y";
    ASSERT_EQ(valid_utf8_prefix(text), scalar ? text.size() : 1) << std::hex << code;
  }
}

TEST(Utf8, RefusesOverlongFormsStrayBytesAndCutCharacters) {
  for (const std::string_view bad : {"\xC0\x80"sv, "\xC1\xBF"sv, "\xE0\x9F\xBF"sv, "\xF0\x8F\xBF\xBF"sv, "\x80"sv,
                                     "\xFF"sv, "\xFE"sv, "\xC3"sv, "\xE2\x96"sv, "\xF0\x9F\x98"sv, "\xC3("sv}) {
    EXPECT_EQ(valid_utf8_prefix("ok " + std::string(bad)), 3U) << bad.size();
  }
}

TEST(Utf8, CutsAtTheFirstLineEndFromTheTargetOn) {
  EXPECT_EQ(cut_length("aa\nbbbb\ncc\n", 5), 8U);
  EXPECT_EQ(cut_length("aaaa\nb\n", 5), 5U);
  EXPECT_EQ(cut_length("short", 100), 5U);
}

TEST(Utf8, CutsALineThatIsTooLongBetweenCharacters) {
  EXPECT_EQ(cut_length(std::string(30, 'x'), 5), 10U);
  EXPECT_EQ(cut_length(std::string(10, 'x'), 5), 10U);
  // Ten bytes end inside the third of these four-byte characters.
  EXPECT_EQ(cut_length("\U0001F600\U0001F600\U0001F600\U0001F600", 5), 8U);
  // Even a target of one byte makes progress.
  EXPECT_EQ(cut_length("\U0001F600\U0001F600", 1), 4U);
  EXPECT_EQ(cut_length("a\U0001F600\U0001F600", 1), 1U);
  // Invalid UTF-8 has no such position and is cut at the limit.
  EXPECT_EQ(cut_length(std::string(30, '\x80'), 5), 10U);
}

}  // namespace
}  // namespace thinpipe
