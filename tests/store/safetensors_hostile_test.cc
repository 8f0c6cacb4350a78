// Hostile files: truncated anywhere, flipped anywhere, and headers that lie.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/safetensors.h"
#include "store/safetensors_files.h"

namespace thinpipe {
namespace {

using test::raw_safetensors;

const std::string kSmall =
    raw_safetensors(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                    R"("b":{"dtype":"U8","shape":[3,1],"data_offsets":[8,11]}}  )",
                    "01234567abc");

std::string refusal(std::string_view file) {
  const auto parsed = SafetensorsFile::parse(file, "x.st");
  return parsed ? "(accepted)" : parsed.error().message;
}

// What must hold for every accepted file.
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

TEST(SafetensorsHostile, AcceptsTheUnchangedFile) { EXPECT_EQ(refusal(kSmall), "(accepted)"); }

TEST(SafetensorsHostile, EveryTruncationIsRefused) {
  for (size_t length = 0; length < kSmall.size(); ++length) {
    // A copy of exactly that size, so that a read past the end is caught by the sanitizer.
    const std::vector<char> cut(kSmall.begin(), kSmall.begin() + static_cast<ptrdiff_t>(length));
    const std::string said = refusal({cut.data(), cut.size()});
    EXPECT_TRUE(said.starts_with("x.st: not a valid safetensors file: ")) << length << ": " << said;
  }
}

TEST(SafetensorsHostile, RefusesAnExtraByte) { EXPECT_NE(refusal(kSmall + '\0'), "(accepted)"); }

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

TEST(SafetensorsHostile, RefusesRepeatedNames) {
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

TEST(SafetensorsHostile, RefusesMetadataThatIsNotText) {
  expect_refused({
      {R"({"__metadata__":1})", "", "\"__metadata__\": is a number, needs an object"},
      {R"({"__metadata__":[]})", "", "\"__metadata__\": is a list, needs an object"},
      {R"({"__metadata__":{"a":1}})", "", "\"__metadata__\": \"a\" is not text"},
      {R"({"__metadata__":{"a":["b"]}})", "", "\"__metadata__\": \"a\" is not text"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", "", "\"__metadata__\": has an object inside it"},
      {R"({"__metadata__":{"a":null}})", "", "\"__metadata__\": \"a\" is not text"},
  });
}

TEST(SafetensorsHostile, RefusesLayoutsThatDoNotFit) {
  const auto two = [](std::string_view a, std::string_view b) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":{}}},)"
                       R"("b":{{"dtype":"U8","shape":[2],"data_offsets":{}}}}})",
                       a, b);
  };
  const std::string counted = "tensor \"w\": shape has too many bytes";
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

TEST(SafetensorsHostile, RefusesDeepNestingImmediately) {
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
