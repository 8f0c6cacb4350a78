// Odd texts, from the file to the tokens: each is either trained on exactly as it is, or refused in one line that says
// what would help. Permissions and pipes by themselves: corpus_test.cc; damaged compression: decompression_test.cc.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/line.h"
#include "support/shell.h"
#include "text/compressed.h"
#include "text/prepare_setting.h"
#include "text/shards.h"
#include "text/tokenizer.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;
using test::documents;
using test::english;
using test::jsonl;
using test::Setting;
using test::write_file;

const std::string kText = english(300, 1);

// The texts of one shard, in order.
std::vector<std::string> texts_in(const fs::path& path, const Tokenizer& tokenizer) {
  const auto shard = TokenShard::open(path).take();
  std::vector<int32_t> ids(shard.size());
  shard.read(0, ids).take();
  std::vector<std::vector<int32_t>> parts;
  for (const int32_t id : ids) {
    if (id == tokenizer.bos()) parts.emplace_back();
    parts.back().push_back(id);
  }
  std::vector<std::string> texts;
  for (const auto& part : parts) texts.push_back(tokenizer.decode(part).take());
  return texts;
}

// What the model would be trained and validated on, in the order of the corpus.
std::string trained_text(const Setting& setting) {
  const auto corpus = setting.prepare();
  const auto tokenizer = Tokenizer::load(corpus.tokenizer).take();
  const auto train = texts_in(corpus.train, tokenizer), val = texts_in(corpus.val, tokenizer);
  std::string text;
  size_t next[2] = {0, 0};
  for (const bool is_val : test::validation_of(train.size() + val.size(), setting.data.val_fraction)) {
    text += (is_val ? val : train).at(next[is_val ? 1 : 0]++);
  }
  return text;
}

std::string utf16(std::string_view ascii) {
  std::string bytes;
  for (const char one : ascii) bytes += {one, '\0'};
  return bytes;
}

TEST(Oddities, OddText_ComesBackFromItsTokens) {
  const std::string nul(1, '\0');
  for (const std::string& odd :
       {"windows\r\nlines\r\n"s, "old mac\rlines\r"s, "nul" + nul + nul + "nul\n", "\t \n\n\n   \n"s,
        "\x7F\x1B[31m\b\a\f\v"s, "\u2028\u0085\u00A0\u200D\u202E"s, "not at the beginning: \uFEFF"s,
        "<s></s><unk><0x41>"s, "e\u0301 \u00E9"s, "\U0010FFFF\uFFFF\uFDD0"s, std::string(300'000, 'x'),
        std::string(5000, '\n'), "no end of line"s}) {
    const Setting setting(kText + odd, "a.txt");
    EXPECT_EQ(trained_text(setting), kText + odd) << escaped(odd.substr(0, 100));
  }
}

TEST(Oddities, ByteOrderMark_IsNoPartOfTheText) {
  EXPECT_EQ(trained_text(Setting("\xEF\xBB\xBF" + kText, "a.txt")), kText);
  Setting setting("\xFF\xFE" + utf16(kText), "a.txt");
  setting.data.encoding = Encoding::kAuto;
  EXPECT_EQ(trained_text(setting), kText);
}

TEST(Oddities, CompressedText_IsTheSameCorpus) {
  const std::string id = Setting(kText, "a.txt").prepare().id;
  const std::string gzip_twice = test::gzip(kText.substr(0, 1001)) + test::gzip(kText.substr(1001));
  const std::string zstd_twice = test::zstd(kText.substr(0, 1001)) + test::zstd(kText.substr(1001));
  for (const auto& [name, bytes] : {std::pair{"a.txt.gz", test::gzip(kText)}, std::pair{"b.gz", gzip_twice},
                                    std::pair{"a.txt.zst", test::zstd(kText)}, std::pair{"c.zst", zstd_twice}}) {
    EXPECT_EQ(Setting(bytes, name).prepare().id, id) << name;
  }
  const std::string lines = jsonl(test::sixty_documents());
  const std::string lines_id = Setting(lines).prepare().id;
  EXPECT_EQ(Setting(test::gzip(lines), "c.jsonl.gz").prepare().id, lines_id);
  EXPECT_EQ(Setting(test::zstd(lines), "c.jsonl.zst").prepare().id, lines_id);
}

// Whether a file is valid UTF-8 shows only at its end, so it is read twice.
TEST(Oddities, EncodingOfCompressedText_IsFoundInASecondPass) {
  const std::string late = kText + "caf\xE9\n";
  for (const auto& [bytes, text] : {std::pair{late, kText + "caf\u00E9\n"}, std::pair{utf16(kText), kText},
                                    std::pair{kText + "caf\u00E9\n", kText + "caf\u00E9\n"}}) {
    for (const auto& [name, packed] : {std::pair{"a.gz", test::gzip(bytes)}, std::pair{"a.zst", test::zstd(bytes)}}) {
      Setting setting(packed, name);
      setting.data.encoding = Encoding::kAuto;
      EXPECT_EQ(trained_text(setting), text) << name;
    }
  }
}

TEST(Oddities, FolderOfMixedEncodingsAndCompressions_IsReadFileByFile) {
  Setting setting(kText, "texts/a.txt");
  write_file(setting.folder / "texts/b.txt", "caf\xE9\n");
  write_file(setting.folder / "texts/c.txt.gz", test::gzip(utf16("sixteen\n")));
  write_file(setting.folder / "texts/d.jsonl.zst", test::zstd(jsonl({"json\n"})));
  write_file(setting.folder / "texts/e\nbreak.txt", "line break\n");
  write_file(setting.folder / "texts/empty.txt", "");
  write_file(setting.folder / "texts/empty.txt.gz", test::gzip(""));
  fs::create_directory_symlink(setting.folder / "texts", setting.folder / "texts/loop");
  setting.data.corpus = setting.folder / "texts";
  setting.data.encoding = Encoding::kAuto;
  EXPECT_EQ(trained_text(setting), kText + "caf\u00E9\nsixteen\njson\nline break\n");
}

TEST(Oddities, FieldOfAJsonLine_IsChosenByItsKey) {
  std::string lines;
  for (const auto& text : test::sixty_documents()) {
    lines += nlohmann::json{{"body", text}, {"text", "no"}, {"id", 7}}.dump() + "\n";
  }
  Setting setting(lines);
  setting.data.field = "body";
  EXPECT_EQ(setting.prepare().id, Setting().prepare().id);
  setting.data.field = "id";
  EXPECT_NE(setting.error(), "");
}

TEST(Oddities, HalfEscapes_FollowDataInvalid) {
  const std::string lines = jsonl(test::sixty_documents());
  Setting setting(lines + R"({"text": "a\ud83d b\udc00 \ud83d\ude00"})" + "\n");
  EXPECT_EQ(setting.error(), fmt::format("{}: line 61 (byte {}): the escape \\ud83d is half a character; set "
                                         "data.invalid = \"replace\" or \"skip\"",
                                         setting.data.corpus, lines.size() + 11));
  setting.data.invalid = Invalid::kReplace;
  EXPECT_EQ(documents(Corpus::open(setting.data)).back(), "a\uFFFD b\uFFFD \U0001F600");
  EXPECT_EQ(setting.prepare().invalid, 2U);
  setting.data.invalid = Invalid::kSkip;
  EXPECT_EQ(documents(Corpus::open(setting.data)).back(), "a b \U0001F600");
}

struct Refused {
  const char* name;
  std::string bytes;
  std::vector<const char*> parts;  // of the line, beside the file's name
};

void expect_refused(const std::vector<Refused>& cases) {
  for (const auto& [name, bytes, parts] : cases) {
    const Setting setting(bytes, name);
    const auto said = setting.error();
    EXPECT_NE(said.find(setting.data.corpus), std::string::npos) << said;
    for (const auto* part : parts) EXPECT_NE(said.find(part), std::string::npos) << part << " is not in " << said;
    EXPECT_EQ(escaped(said).find('\n'), std::string::npos) << said;
  }
}

TEST(Oddities, WhatIsNoText_IsRefusedWithWhatWouldHelp) {
  const auto cut = [](const std::string& bytes) { return bytes.substr(0, bytes.size() - 9); };
  std::string tar(1024, '\0');
  tar.replace(0, 5, "a.txt").replace(257, 5, "ustar");
  expect_refused({
      {"empty.txt", "", {"has no text: give a larger corpus"}},
      {"empty.jsonl", "\n\n{\"text\": \"\"}\n", {"has no text: give a larger corpus"}},
      {"blank.txt", std::string(9999, ' ') + "\r\n\t\n", {"has no text but white space: give a larger corpus"}},
      {"tiny.txt", "x", {"has 1 bytes of text, too little"}},
      {"a\nb.txt", "caf\xE9\n", {"line 1 (byte 3): invalid UTF-8"}},
      {"latin.txt", kText + "caf\xE9\n", {"line 301", "invalid UTF-8", "data.encoding = \"auto\"", "data.invalid"}},
      {"mixed.txt", "caf\u00E9\ncaf\xE9\n", {"line 2 (byte 9): invalid UTF-8", "data.encoding", "data.invalid"}},
      {"sixteen.txt", utf16(kText), {"looks like UTF-16", "set data.encoding = \"utf-16\""}},
      {"cut.txt.gz", cut(test::gzip(kText)), {"byte ", " bytes of text: the gzip data is cut short"}},
      {"cut.txt.zst", cut(test::zstd(kText)), {"byte ", " bytes of text: the zstd data is cut short"}},
      {"bomb.gz", test::gzip(std::string(16 << 20, 'x')), {"more than 100 times the size", "`gzip -d` first"}},
      {"bomb.jsonl.zst", test::zstd_bomb(1 << 16), {"more than 100 times the size", "`zstd -d` first"}},
      {"words.gz", kText, {"is named .gz but is not compressed by gzip", "rename it without .gz"}},
      {"words.zst", test::gzip(kText), {"is named .zst but is not compressed by zstd"}},
      {"packed.txt", test::gzip(kText), {"is not text but compressed by gzip; let its name end in .gz"}},
      {"twice.gz", test::gzip(test::gzip(kText)), {"holds, once decompressed, not text but compressed by gzip"}},
      {"a.tar.gz", test::gzip(tar), {"holds, once decompressed, not text but a tar archive"}},
      {"a.tar", tar, {"is not text but a tar archive"}},
      {"a.pdf", "%PDF-1.7\n", {"is not text but a PDF; convert it"}},
      {"a.parquet", "PAR1\x15", {"is not text but a Parquet file"}},
      {"wide.zst", test::zstd_with_window(30), {"needs a window above 128 MiB"}},
  });
}

TEST(Oddities, JsonLineWithoutADocument_IsRefusedWithWhatWouldHelp) {
  expect_refused({
      {"a.jsonl",
       "{\"text\": \"x\"}\n{\"id\": 1, \"body\": \"x\"}\n",
       {"line 2 (byte 14): an object without the field \"text\"; it has \"id\", \"body\"", "set data.field"}},
      {"a.jsonl", "{\"text\": 5}\n", {"the field \"text\" holds a number, not a string", "set data.field"}},
      {"a.jsonl", "{\"text\": \"x\"}\n[\"x\"]\n", {"line 2 (byte 14): an array, where a .jsonl file has an object"}},
      {"a.jsonl", "[\n{\"text\": \"x\"},\n", {"line 1", "not valid JSON; if the file is one JSON document", "python3"}},
      {"a.jsonl", "{\n\"text\": \"x\"\n}\n", {"line 1", "not valid JSON; if the file is one JSON document", "python3"}},
      {"a.jsonl", "plain words\n", {"line 1 (byte 0): not valid JSON"}},
      {"a.jsonl.gz", test::gzip("{\"text\": \"x\"}\n{\"text"), {"line 2 (byte 20): not valid JSON"}},
      {"a.csv", "id,text\n1,x\n", {"is a table (CSV)", "python3", "set data.field", "rename it to .txt"}},
      {"a.tsv.zst", test::zstd("id\ttext\n1\tx\n"), {"is a table (TSV)", "zstdcat ", "python3", "set data.field"}},
      {"a.json", " [{\"text\": \"x\"}]", {"is JSON, not text", "rename it to .jsonl", "python3", "rename it to .txt"}},
      {"a.json", "\xEF\xBB\xBF{\"text\": \"x\"}", {"is JSON, not text", "rename it to .jsonl", "python3"}},
      {"a.ndjson", "{\"text\": \"x\"}\n", {"is JSON, not text", "rename it to .jsonl"}},
  });
}

// The command in such a line makes the documents that were meant.
TEST(Oddities, CommandForATableOrADocument_MakesLinesOfIt) {
  const std::string odd = "one, \"two\"\nthree \u00E9\U0001F600";
  const std::string quoted = "\"one, \"\"two\"\"\nthree \u00E9\U0001F600\"";
  const auto array = nlohmann::json::array({{{"body", odd}}, {{"body", "four"}}}).dump(1);
  for (const auto& [name, bytes] : {std::pair{"a.csv", "id,body\n1," + quoted + "\n2,four\n"},
                                    std::pair{"it's a $(b).csv", "id,body\n1," + quoted + "\n2,four\n"},
                                    std::pair{"a.tsv", "id\tbody\n1\t" + quoted + "\n2\tfour\n"},
                                    std::pair{"a.csv.gz", test::gzip("id,body\n1," + quoted + "\n2,four\n")},
                                    std::pair{"a.json", array}, std::pair{"a.jsonl", array}}) {
    Setting setting(bytes, name);
    const auto said = setting.error();
    const size_t start = std::min(said.find("cat "), said.find("zcat "));
    ASSERT_NE(start, std::string::npos) << said;
    const auto end = std::min({said.find(" and set data.field", start), said.find("; or rename", start), said.size()});
    EXPECT_EQ(test::output_of(said.substr(start, end - start)).first, 0) << said;
    setting.data.corpus += ".jsonl";
    setting.data.field = "body";
    EXPECT_EQ(documents(Corpus::open(setting.data)), (std::vector<std::string>{odd, "four"})) << said;
  }
}

TEST(Oddities, FolderWithSomethingElseThanText_NamesIt) {
  Setting setting(kText, "texts/a.txt");
  setting.data.corpus = setting.folder / "texts";
  const auto refused = [&](const std::string& name, const std::string& what) {
    EXPECT_EQ(setting.error(), fmt::format("data.corpus: {} {}; take it away, or give the files one by one",
                                           (setting.folder / "texts" / name).string(), what));
    fs::remove(setting.folder / "texts" / name);
  };
  fs::create_symlink(setting.folder / "gone", setting.folder / "texts/gone.txt");
  refused("gone.txt", "is a link to nothing that can be read");
  fs::create_symlink("itself.txt", setting.folder / "texts/itself.txt");
  refused("itself.txt", "is a link to nothing that can be read");
  ASSERT_EQ(::mkfifo((setting.folder / "texts/pipe").c_str(), 0600), 0);
  refused("pipe", "is not a file");
  EXPECT_EQ(setting.error(), "");
  fs::create_directory(setting.folder / "nothing");
  setting.data.corpus = setting.folder / "nothing";
  EXPECT_NE(setting.error().find("nothing has no files"), std::string::npos);
}

TEST(Oddities, CompressedFileThatChangesBetweenTwoPasses_IsRefused) {
  for (const auto& [bytes, what] : {std::pair{test::gzip(english(301, 1)), "changed while it was read; try again"},
                                    std::pair{test::gzip(kText).substr(0, 900), "is cut short"}}) {
    const Setting setting(test::gzip(kText), "a.txt.gz");
    bool changed = false;
    const auto said = test::user_error([&] {
      prepare_corpus(setting.data, setting.cache(), [&](std::string_view phase, uint64_t, uint64_t) {
        if (phase == "reading the corpus" || changed) return;
        changed = true;
        write_file(setting.data.corpus, bytes);
      });
    });
    EXPECT_NE(said.find(what), std::string::npos) << said;
    EXPECT_EQ(setting.prepared_entries(), 0U);
  }
}

}  // namespace
}  // namespace thinpipe
