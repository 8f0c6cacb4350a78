// What is written is read back, byte for byte; the bytes are those the format prescribes; a full disk leaves nothing.
// Then files nobody should have written: cut anywhere, flipped anywhere, and headers that lie.
#include "store/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;
using test::SmallDisk;

// A file made by hand, so that the reader is not only tested against our own writer: length, header as given, data as
// given. Nothing is padded or corrected.
std::string raw_safetensors(std::string_view header, std::string_view data) {
  const auto length = le_bytes<uint64_t>(header.size());
  return std::string(length.data(), length.size()).append(header).append(data);
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void expect_same(const SafetensorsTensor& a, const SafetensorsTensor& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(text_of(a.bytes), text_of(b.bytes));
}

const std::string kSomeBytes = [] {
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  return bytes;
}();

std::vector<SafetensorsTensor> some_tensors() {
  const auto all = bytes_of(kSomeBytes);
  return {
      {"zz.first", Dtype::kF32, {2, 3}, all.subspan(0, 24)},
      {"scalar", Dtype::kF64, {}, all.subspan(1, 8)},
      {"empty", Dtype::kI16, {4, 0, 2}, {}},
      {"half", Dtype::kF16, {1}, all.subspan(8, 2)},
      {"brain", Dtype::kBf16, {3}, all.subspan(9, 6)},
      {"long", Dtype::kI64, {2}, all.subspan(100, 16)},
      {"int", Dtype::kI32, {1, 1}, all.subspan(50, 4)},
      {"byte", Dtype::kI8, {5}, all.subspan(200, 5)},
      {"unsigned", Dtype::kU8, {256}, all},
      {"bool", Dtype::kBool, {2}, all.subspan(0, 2)},
      {"na\"me\n\u00e9 \U0001f600", Dtype::kU8, {1}, all.subspan(7, 1)},
      {"", Dtype::kU8, {1}, all.subspan(9, 1)},
  };
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  const ScratchFolder folder;
  const auto path = folder / "model.safetensors";
  const auto tensors = some_tensors();
  const SafetensorsMetadata metadata{{"format", "pt"}, {"quote\"", "line\nbreak \u4e2d"}, {"", ""}};
  ASSERT_TRUE(write_safetensors(path, tensors, metadata).ok());

  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file.value().metadata(), metadata);
  ASSERT_EQ(file.value().tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* found = file.value().find(tensors[i].name);
    ASSERT_NE(found, nullptr) << tensors[i].name;
    expect_same(*found, tensors[i]);
  }
  EXPECT_EQ(file.value().find("nowhere"), nullptr);
  EXPECT_EQ(folder.file_count(), 1u);
}

TEST(Safetensors, WritesTensorByTensorTheSameFile) {
  const ScratchFolder folder;
  auto tensors = some_tensors();
  ASSERT_TRUE(write_safetensors(folder / "at once", tensors, {{"a", "b"}}).ok());
  const auto all = some_tensors();
  for (auto& tensor : tensors) tensor.bytes = {};
  {
    auto writer = SafetensorsWriter::create(folder / "one by one", tensors, {{"a", "b"}}).take();
    for (const auto& tensor : all) ASSERT_TRUE(writer.append(tensor.bytes).ok());
    ASSERT_TRUE(writer.commit().ok());
    // Begun and not finished: nothing is left of it.
    auto unfinished = SafetensorsWriter::create(folder / "unfinished", tensors).take();
    ASSERT_TRUE(unfinished.append(all[0].bytes).ok());
  }
  EXPECT_EQ(read_file(folder / "one by one").take(), read_file(folder / "at once").take());
  EXPECT_EQ(folder.file_count(), 2U);
}

TEST(Safetensors, BytesOutliveTheMove) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_safetensors(folder / "a", some_tensors()).ok());
  auto opened = SafetensorsFile::open(folder / "a");
  const SafetensorsFile moved = std::move(opened).take();
  expect_same(*moved.find("zz.first"), some_tensors()[0]);
}

TEST(Safetensors, WritesTheBytesOfTheFormat) {
  const ScratchFolder folder;
  const auto path = folder / "golden";
  const std::vector<SafetensorsTensor> tensors{{"b", Dtype::kI16, {2}, bytes_of("\1\2\3\4")},
                                               {"a", Dtype::kU8, {1, 1}, bytes_of("!")}};
  ASSERT_TRUE(write_safetensors(path, tensors, {{"step", "7"}}).ok());
  const std::string header = R"({"__metadata__":{"step":"7"},"b":{"dtype":"I16","shape":[2],"data_offsets":[0,4]},)"
                             R"("a":{"dtype":"U8","shape":[1,1],"data_offsets":[4,5]}})";
  const std::string padded = header + std::string(7 - (header.size() + 7) % 8, ' ');
  EXPECT_EQ(padded.size() % 8, 0u);
  EXPECT_EQ(read_file(path).value(), raw_safetensors(padded, "\1\2\3\4!"));
}

TEST(Safetensors, TheSameInputGivesTheSameBytes) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_safetensors(folder / "a", some_tensors(), {{"x", "1"}, {"y", "2"}}).ok());
  ASSERT_TRUE(write_safetensors(folder / "b", some_tensors(), {{"y", "2"}, {"x", "1"}}).ok());
  EXPECT_EQ(read_file(folder / "a").value(), read_file(folder / "b").value());
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_safetensors(folder / "none", {}).ok());
  const auto file = SafetensorsFile::open(folder / "none");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file.value().tensors().empty());
}

// Other writers list the header in another order than the bytes lie in; only the bytes' order matters.
TEST(Safetensors, ReadsAHeaderInAnyOrder) {
  const std::string bytes = raw_safetensors(R"({"b":{"data_offsets":[2,3],"shape":[1],"dtype":"U8"},)"
                                            R"("e":{"data_offsets":[2,2],"shape":[0],"dtype":"U8"},)"
                                            R"("a":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}}   )",
                                            "xyz");
  const auto file = SafetensorsFile::parse(bytes, "mixed");
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file.value().tensors().size(), 3u);
  EXPECT_EQ(file.value().tensors()[0].name, "a");
  EXPECT_EQ(text_of(file.value().find("a")->bytes), "xy");
  EXPECT_EQ(text_of(file.value().find("b")->bytes), "z");
  EXPECT_EQ(text_of(file.value().find("e")->bytes), "");
}

TEST(Safetensors, WriterRefusesMetadataThatIsNotUtf8) {
  const ScratchFolder folder;
  const auto status = write_safetensors(folder / "x", {}, {{"corpus", "caf\xe9"}});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("is not valid UTF-8"), std::string::npos) << status.error().message;
  EXPECT_EQ(folder.file_count(), 0u);
}

TEST(SafetensorsDeathTest, WriterStopsOnTensorsThatContradictThemselves) {
  const std::vector<SafetensorsTensor> wrong_size{{"w", Dtype::kF32, {2}, bytes_of("1234567")}};
  EXPECT_DEATH((void)write_safetensors("/nowhere/x", wrong_size),
               "tensor w of shape \\[2\\] and dtype F32 has 7 bytes");
  const std::vector<SafetensorsTensor> twice{{"w", Dtype::kU8, {0}, {}}, {"w", Dtype::kU8, {0}, {}}};
  EXPECT_DEATH((void)write_safetensors("/nowhere/x", twice), "tensor w is given twice");
  const std::vector<SafetensorsTensor> reserved{{"__metadata__", Dtype::kU8, {0}, {}}};
  EXPECT_DEATH((void)write_safetensors("/nowhere/x", reserved), "__metadata__");
}

TEST(Safetensors, AFullDiskLeavesTheOldFileAndNothingElse) {
  const SmallDisk disk(256 << 10);
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  const auto path = disk.folder() / "model.safetensors";
  ASSERT_TRUE(write_safetensors(path, some_tensors()).ok());
  const std::string before = read_file(path).value();

  const std::string large(1 << 20, 'x');
  const std::vector<SafetensorsTensor> tensors{{"large", Dtype::kU8, {1 << 20}, bytes_of(large)}};
  for (const char* name : {"model.safetensors", "new.safetensors"}) {
    const auto status = write_safetensors(disk.folder() / name, tensors);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find(name), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find("No space left"), std::string::npos) << status.error().message;
  }
  EXPECT_EQ(read_file(path).value(), before);
  EXPECT_EQ(disk.folder().file_count(), 1u);
}

TEST(TensorBytes, CountsOrRefusesToOverflow) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_EQ(tensor_bytes(Dtype::kF32, std::vector<int64_t>{2, 3}), 24);
  EXPECT_EQ(tensor_bytes(Dtype::kF64, {}), 8);
  EXPECT_EQ(tensor_bytes(Dtype::kU8, std::vector<int64_t>{kHuge}), kHuge);
  EXPECT_EQ(tensor_bytes(Dtype::kF32, std::vector<int64_t>{kHuge}), std::nullopt);
  EXPECT_EQ(tensor_bytes(Dtype::kU8, std::vector<int64_t>{kHuge, 2}), std::nullopt);
  EXPECT_EQ(tensor_bytes(Dtype::kU8, std::vector<int64_t>{0, kHuge, kHuge}), std::nullopt);
  EXPECT_EQ(tensor_bytes(Dtype::kU8, std::vector<int64_t>{-1}), std::nullopt);
  EXPECT_EQ(tensor_bytes(Dtype::kU8, std::vector<int64_t>{-1, -1}), std::nullopt);
  EXPECT_EQ(tensor_bytes(Dtype::kU8, std::vector<int64_t>{5, 0}), 0);
}

TEST(Dtype, NamesAndSizesAreTheFormats) {
  const std::vector<std::pair<std::string, int64_t>> expected{{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2},
                                                              {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1},
                                                              {"U8", 1},  {"BOOL", 1}};
  for (const auto& [name, bytes] : expected) {
    const auto dtype = dtype_from_name(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
    EXPECT_EQ(dtype_bytes(*dtype), bytes);
  }
  EXPECT_EQ(dtype_from_name("f32"), std::nullopt);
}

// ---- hostile files ----

const std::string kSmall =
    raw_safetensors(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                    R"("b":{"dtype":"U8","shape":[3,1],"data_offsets":[8,11]}}  )",
                    "01234567abc");

std::string refusal(std::string_view file) {
  const auto parsed = SafetensorsFile::parse(file, "x.st");
  return parsed ? "(accepted)" : parsed.error().message;
}

// What every accepted file must be, whatever its bytes.
void expect_consistent(const SafetensorsFile& parsed, std::string_view file) {
  const auto* begin = reinterpret_cast<const std::byte*>(file.data());
  size_t total = 0;
  for (const auto& tensor : parsed.tensors()) {
    EXPECT_EQ(static_cast<int64_t>(tensor.bytes.size()), tensor_bytes(tensor.dtype, tensor.shape));
    EXPECT_GE(tensor.bytes.data(), begin + 8);
    EXPECT_LE(tensor.bytes.data() + tensor.bytes.size(), begin + file.size());
    EXPECT_EQ(parsed.find(tensor.name), &tensor);
    total += tensor.bytes.size();
  }
  EXPECT_LE(total, file.size());
}

TEST(SafetensorsHostile, TheSmallFileItselfIsFine) { EXPECT_EQ(refusal(kSmall), "(accepted)"); }

TEST(SafetensorsHostile, EveryTruncationIsRefused) {
  for (size_t length = 0; length < kSmall.size(); ++length) {
    // A copy of exactly that size, so that a read past the end is caught by the sanitizer.
    const std::vector<char> cut(kSmall.begin(), kSmall.begin() + static_cast<ptrdiff_t>(length));
    const std::string said = refusal({cut.data(), cut.size()});
    EXPECT_TRUE(said.starts_with("x.st: not a valid safetensors file: ")) << length << ": " << said;
  }
}

TEST(SafetensorsHostile, AByteTooManyIsRefused) { EXPECT_NE(refusal(kSmall + '\0'), "(accepted)"); }

TEST(SafetensorsHostile, EveryChangeOfAByteIsRefusedOrHarmless) {
  size_t refused = 0;
  for (size_t offset = 0; offset < kSmall.size(); ++offset) {
    for (int flip = 1; flip < 256; ++flip) {
      std::vector<char> changed(kSmall.begin(), kSmall.end());
      changed[offset] = static_cast<char>(changed[offset] ^ flip);
      const std::string_view file(changed.data(), changed.size());
      const auto parsed = SafetensorsFile::parse(file, "x.st");
      if (parsed) {
        expect_consistent(parsed.value(), file);
      } else {
        ++refused;
        EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
      }
    }
  }
  EXPECT_GT(refused, 10'000u);  // the length and the structure; names, texts and data may change
}

struct Lie {
  std::string header;
  std::string data;
  std::string message;
};

void expect_refused(const std::vector<Lie>& lies) {
  for (const auto& [header, data, message] : lies) {
    EXPECT_EQ(refusal(raw_safetensors(header, data)), "x.st: not a valid safetensors file: " + message) << header;
  }
}

std::string tensor(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"w":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}

TEST(SafetensorsHostile, RefusesLengthsThatLie) {
  const std::string huge = "\xff\xff\xff\xff\xff\xff\xff\xff{}";
  EXPECT_NE(refusal(huge).find("18446744073709551615 bytes, needs at most 100000000"), std::string::npos);
  const std::string beyond = std::string("\x03\0\0\0\0\0\0\0", 8) + "{}";
  EXPECT_NE(refusal(beyond).find("3 bytes, but only 2 follow"), std::string::npos) << refusal(beyond);
  EXPECT_NE(refusal("1234567").find("has 7 bytes, needs at least 8"), std::string::npos);
  EXPECT_NE(refusal("").find("has 0 bytes, needs at least 8"), std::string::npos);
}

TEST(SafetensorsHostile, RefusesWhatIsNotAnObject) {
  expect_refused({
      {"", "", "header does not start with '{'"},
      {" {}", "", "header does not start with '{'"},
      {"[]", "", "header does not start with '{'"},
      {"\xef\xbb\xbf{}", "", "header does not start with '{'"},
      {"{}\n", "", "header does not end with '}' and spaces"},
      {"{", "", "header does not end with '}' and spaces"},
      {"{}}", "", "header is not valid JSON at its byte 3"},
      {"{}{}", "", "header is not valid JSON at its byte 3"},
      {std::string("{}\0}", 4), "", "header is not valid JSON at its byte 3"},
      {"{/**/}", "", "header is not valid JSON at its byte 2"},
      {"{\"a\xff\":1}", "", "header is not valid JSON at its byte 4"},
      {"{\"a\xc0\xaf\":1}", "", "header is not valid JSON at its byte 4"},
      {R"({"\ud800":1})", "", "header is not valid JSON at its byte 9"},
  });
}

TEST(SafetensorsHostile, RefusesEntriesThatAreNotTensors) {
  const std::string dtypes = "is not one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL";
  const std::string numbers = "needs whole numbers from 0 to 9223372036854775807";
  expect_refused({
      {R"({"w":1})", "", "tensor \"w\": is a number, needs an object"},
      {R"({"w":null})", "", "tensor \"w\": is a null, needs an object"},
      {R"({"w":[]})", "", "tensor \"w\": is a list, needs an object"},
      {R"({"w":"x"})", "", "tensor \"w\": is a string, needs an object"},
      {R"({"w":true})", "", "tensor \"w\": is a boolean, needs an object"},
      {R"({"a\nb":1})", "", "tensor \"a\\nb\": is a number, needs an object"},
      {R"({"w":{}})", "", "tensor \"w\": needs all of dtype, shape, data_offsets"},
      {R"({"w":{"dtype":"U8","shape":[0]}})", "", "tensor \"w\": needs all of dtype, shape, data_offsets"},
      {R"({"w":{"extra":1}})", "", "tensor \"w\": has a field \"extra\", needs dtype, shape, data_offsets only"},
      {tensor("\"F8\"", "[0]", "[0,0]"), "", "tensor \"w\": dtype \"F8\" " + dtypes},
      {tensor("3", "[0]", "[0,0]"), "", "tensor \"w\": dtype 3 " + dtypes},
      {tensor("[\"U8\"]", "[0]", "[0,0]"), "", "tensor \"w\": dtype array " + dtypes},
      {tensor("\"U8\"", "0", "[0,0]"), "", "tensor \"w\": shape is a number, needs a list of numbers"},
      {tensor("\"U8\"", "[-1]", "[0,0]"), "", "tensor \"w\": shape has -1, " + numbers},
      {tensor("\"U8\"", "[1.0]", "[0,1]"), "x", "tensor \"w\": shape has 1.0, " + numbers},
      {tensor("\"U8\"", "[\"1\"]", "[0,1]"), "x", "tensor \"w\": shape has \"1\", " + numbers},
      {tensor("\"U8\"", "[[1]]", "[0,1]"), "x", "tensor \"w\": has a list in a list"},
      {tensor("\"U8\"", "[{}]", "[0,1]"), "x", "tensor \"w\": has an object inside it"},
      {tensor("\"U8\"", "[9223372036854775808]", "[0,1]"), "x",
       "tensor \"w\": shape has 9223372036854775808, " + numbers},
      {tensor("\"U8\"", "[18446744073709551617]", "[0,1]"), "x",
       "tensor \"w\": shape has 1.8446744073709552e+19, " + numbers},
      {tensor("\"U8\"", "[1e999]", "[0,1]"), "x", "header has a number that is too large"},
      {tensor("\"U8\"", "[1]", "[0]"), "x", "tensor \"w\": data_offsets needs exactly 2 numbers"},
      {tensor("\"U8\"", "[1]", "[0,1,1]"), "x", "tensor \"w\": data_offsets needs exactly 2 numbers"},
      {tensor("\"U8\"", "[1]", "[0,-1]"), "x", "tensor \"w\": data_offsets has -1, " + numbers},
      {tensor("\"U8\"", "[1]", "{}"), "x", "tensor \"w\": has an object inside it"},
  });
}

TEST(SafetensorsHostile, RefusesNamesThatStandTwice) {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_refused({
      {fmt::format(R"({{"w":{0},"w":{0}}})", entry), "", "tensor \"w\": is listed twice"},
      {fmt::format(R"({{"w":{0},"v":{0},"\u0077":{0}}})", entry), "", "tensor \"w\": is listed twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "", "\"__metadata__\": is listed twice"},
      {R"({"__metadata__":{"a":"1","a":"1"}})", "", "\"__metadata__\": has the field \"a\" twice"},
      {R"({"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "",
       "tensor \"w\": has the field \"dtype\" twice"},
      {R"({"w":{"shape":[1],"shape":[1]}})", "", "tensor \"w\": has the field \"shape\" twice"},
  });
}

TEST(SafetensorsHostile, RefusesMetadataThatIsNotTexts) {
  expect_refused({
      {R"({"__metadata__":1})", "", "\"__metadata__\": is a number, needs an object"},
      {R"({"__metadata__":[]})", "", "\"__metadata__\": is a list, needs an object"},
      {R"({"__metadata__":{"a":1}})", "", "\"__metadata__\": \"a\" is not a text"},
      {R"({"__metadata__":{"a":["b"]}})", "", "\"__metadata__\": \"a\" is not a text"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", "", "\"__metadata__\": has an object inside it"},
      {R"({"__metadata__":{"a":null}})", "", "\"__metadata__\": \"a\" is not a text"},
  });
}

TEST(SafetensorsHostile, RefusesLayoutsThatDoNotFit) {
  const auto two = [](std::string_view a, std::string_view b) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":{}}},)"
                       R"("b":{{"dtype":"U8","shape":[2],"data_offsets":{}}}}})",
                       a, b);
  };
  const std::string counted = "tensor \"w\": shape has more bytes than can be counted";
  expect_refused({
      {tensor("\"F32\"", "[2]", "[0,7]"), "1234567",
       "tensor \"w\": data_offsets are [0, 7], but shape and dtype need 8 bytes"},
      {tensor("\"F32\"", "[2]", "[0,8]"), "1234567", "the tensors have 8 bytes, but 7 follow the header"},
      {tensor("\"F32\"", "[2]", "[0,8]"), "123456789", "the tensors have 8 bytes, but 9 follow the header"},
      {tensor("\"U8\"", "[2]", "[2,0]"), "12",
       "tensor \"w\": data_offsets are [2, 0], but shape and dtype need 2 bytes"},
      {tensor("\"U8\"", "[2]", "[1,3]"), "123", "tensor \"w\": begins at byte 1, but the tensors before it end at 0"},
      {two("[0,2]", "[1,3]"), "123", "tensor \"b\": begins at byte 1, but the tensors before it end at 2"},
      {two("[0,2]", "[0,2]"), "12", "tensor \"b\": begins at byte 0, but the tensors before it end at 2"},
      {two("[0,2]", "[3,5]"), "12345", "tensor \"b\": begins at byte 3, but the tensors before it end at 2"},
      {two("[3,5]", "[0,2]"), "12345", "tensor \"a\": begins at byte 3, but the tensors before it end at 2"},
      {tensor("\"F32\"", "[4611686018427387904]", "[0,0]"), "", counted},
      {tensor("\"U8\"", "[4294967296,4294967296]", "[0,0]"), "", counted},
      {tensor("\"U8\"", "[4294967296,4294967296,0]", "[0,0]"), "", counted},
      {tensor("\"U8\"", "[9223372036854775807]", "[0,9223372036854775807]"), "1",
       "the tensors have 9223372036854775807 bytes, but 1 follow the header"},
      {"{}", "x", "the tensors have 0 bytes, but 1 follow the header"},
  });
}

TEST(SafetensorsHostile, DeepNestingIsRefusedAtOnce) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string header = "{\"w\":";
    for (int i = 0; i < 300'000; ++i) header += open;
    header += '}';
    EXPECT_NE(refusal(raw_safetensors(header, "")), "(accepted)");
  }
}

// The parser's cost must not grow with the square of the number of tensors: this takes minutes if it does.
TEST(SafetensorsHostile, ManyTensorsAreReadOneByOne) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    header += fmt::format(R"({}"w{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i == 0 ? "" : ",", i);
  }
  EXPECT_EQ(refusal(raw_safetensors(header + "}", "")), "(accepted)");
}

TEST(SafetensorsHostile, EndlessShapesAreRefused) {
  std::string shape = "[1";
  for (int i = 0; i < 100'000; ++i) shape += ",1";
  expect_refused({{tensor("\"U8\"", shape + "]", "[0,1]"), "x", "tensor \"w\": has a list of more than 32 numbers"}});
}

TEST(SafetensorsHostile, LongNamesAreShortenedInErrors) {
  const std::string said = refusal(raw_safetensors("{\"" + std::string(100'000, 'n') + "\":1}", ""));
  EXPECT_LT(said.size(), 300u);
}

}  // namespace
}  // namespace thinpipe
