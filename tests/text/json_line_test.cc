// The document in a JSON line, escapes of half characters against Python, and what is said about lines without one.
#include "text/json_line.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/scratch.h"
#include "support/shell.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

using test::write_file;

std::string fault(const std::string& line, std::string_view field = "text") {
  const auto read = read_json_line(line, field);
  return read.document ? "document: " + *read.document : fmt::format("{}: {}", read.fault_at, read.fault);
}

TEST(JsonLine, Field_IsTheStringOfThatNameOnTheFirstLevel) {
  const std::string line =
      R"({"id": [1, {"text": "no"}], "text": "one", "meta": {"text": "no", "body": {}}, "body": "two"})";
  EXPECT_EQ(fault(line), "document: one");
  EXPECT_EQ(fault(line, "body"), "document: two");
  EXPECT_EQ(fault(R"({"te\u0078t": "a\u0000\ud83d\ude00"})"), "document: a" + std::string(1, '\0') + "\U0001F600");
  EXPECT_EQ(fault(R"({"text": 1, "text": "the last one counts"})"), "document: the last one counts");
  EXPECT_EQ(fault(R"({"text": ""})"), "document: ");
  EXPECT_EQ(fault(R"({"": "x"})", ""), "document: x");
}

TEST(JsonLine, LineWithoutADocument_IsToldWhatItIs) {
  EXPECT_EQ(fault(R"({"id": 1, "body": "x"})"), R"(0: an object without the field "text"; it has "id", "body")");
  EXPECT_EQ(fault(R"({"meta": {"text": "x"}})"), R"(0: an object without the field "text"; it has "meta")");
  EXPECT_EQ(fault("{}"), R"(0: an object without the field "text"; it has no fields)");
  EXPECT_EQ(fault(R"({"text": 5, "a\nb": 1})"),
            R"(0: the field "text" holds a number, not a string; it has "text", "a\u000ab")");
  EXPECT_EQ(fault(R"({"text": ["x"]})"), R"(0: the field "text" holds an array, not a string; it has "text")");
  EXPECT_EQ(fault(R"({"text": "x", "text": null})"),
            R"(0: the field "text" holds null, not a string; it has "text", "text")");
  for (const auto& [line, kind] :
       {std::pair{R"(["text"])", "an array"}, std::pair{R"("text")", "a string"}, std::pair{"5", "a number"},
        std::pair{"null", "null"}, std::pair{"true", "true or false"}}) {
    EXPECT_EQ(fault(line), fmt::format("0: {}, where a .jsonl file has an object", kind));
  }
}

TEST(JsonLine, ManyAndLongNames_AreCutInTheMessage) {
  std::string line = "{";
  for (int i = 0; i < 20; ++i)
    line += fmt::format(R"({}"{}": 0)", i == 0 ? "" : ", ", std::string(i == 0 ? 100 : 1, 'a'));
  EXPECT_EQ(fault(line + "}"), R"(0: an object without the field "text"; it has ")" + std::string(40, 'a') +
                                   R"("..., "a", "a", "a", "a", "a", "a", "a" and 12 more)");
}

TEST(JsonLine, WhatIsNotJson_IsToldWithItsByte) {
  EXPECT_EQ(fault(R"({"text": "a")"), "12: not valid JSON");
  EXPECT_EQ(fault(R"({"text": "a"} x)"), "14: not valid JSON");
  EXPECT_EQ(fault("plain words"), "0: not valid JSON");
  EXPECT_EQ(fault(""), "0: not valid JSON");
  const std::string deep(3 << 20, '[');
  EXPECT_EQ(fault(deep), fmt::format("{}: not valid JSON", deep.size()));
}

// A line whose text is made of escapes, some of them halves.
std::string random_line(uint64_t number) {
  static constexpr std::string_view kParts[] = {R"(\ud83d)", R"(\ude00)", R"(\uD83D\uDE00)", R"(\\)", R"(\\ud83d)",
                                                R"(\")",     R"(\u0041)", R"(\udbff)",       R"(\n)", "x"};
  const CounterRng rng(number, "escapes");
  uint64_t draw = 0;
  std::string line = R"({"text": ")";
  for (uint64_t parts = test::below(rng, 12, draw++); parts > 0; --parts) {
    line += kParts[test::below(rng, std::size(kParts), draw++)];
  }
  return line + "\"}";
}

TEST(JsonLine, HalfEscapes_AreReplacedAsPythonWouldReplaceThem) {
  constexpr uint64_t kCases = 300;
  const test::ScratchFolder folder;
  std::string lines;
  for (uint64_t i = 0; i < kCases; ++i) lines += random_line(i) + "\n";
  write_file(folder / "lines", lines);
  write_file(folder / "replace.py",
             "import json, re, sys\n"
             "half = re.compile('[\\ud800-\\udfff]')\n"
             "texts = [json.loads(l)['text'] for l in open(sys.argv[1])]\n"
             "print(json.dumps([[len(half.findall(t)), half.sub('\\ufffd', t), half.sub('', t)] for t in texts]))\n");
  const auto expected = test::json_printed_by(
      fmt::format("python3 '{}' '{}'", (folder / "replace.py").string(), (folder / "lines").string()));
  ASSERT_EQ(expected.size(), kCases) << expected.dump().substr(0, 300);
  for (uint64_t i = 0; i < kCases; ++i) {
    const auto line = random_line(i);
    EXPECT_EQ(find_half_escape(line).has_value(), expected[i][0] != 0) << line;
    auto replaced = line, removed = line;
    EXPECT_EQ(replace_half_escapes(replaced, "\\ufffd"), expected[i][0].get<uint64_t>()) << line;
    EXPECT_EQ(replace_half_escapes(removed, ""), expected[i][0].get<uint64_t>()) << line;
    EXPECT_EQ(read_json_line(replaced, "text").document, expected[i][1].get<std::string>()) << line;
    EXPECT_EQ(read_json_line(removed, "text").document, expected[i][2].get<std::string>()) << line;
  }
}

TEST(JsonLine, EscapeThatIsCut_IsNotReadPastItsEnd) {
  const std::string line = R"(\ud83d\ude00\ud83d)";
  for (size_t size = 0; size <= line.size(); ++size) {
    const auto found = find_half_escape(std::string_view(line).substr(0, size));
    const bool first = size >= 6 && size < 12, last = size == 18;
    EXPECT_EQ(found, first ? std::optional<size_t>(0) : last ? std::optional<size_t>(12) : std::nullopt) << size;
  }
}

}  // namespace
}  // namespace thinpipe
