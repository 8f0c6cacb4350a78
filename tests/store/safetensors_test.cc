// Files are read back byte for byte; their bytes follow the format; a full disk leaves nothing behind.
#include "store/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "store/safetensors_files.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::raw_safetensors;
using test::ScratchFolder;
using test::SmallDisk;

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

TEST(Safetensors, WritingTensorByTensorGivesTheSameFile) {
  const ScratchFolder folder;
  auto tensors = some_tensors();
  ASSERT_TRUE(write_safetensors(folder / "at once", tensors, {{"a", "b"}}).ok());
  const auto all = some_tensors();
  for (auto& tensor : tensors) tensor.bytes = {};
  {
    auto writer = SafetensorsWriter::create(folder / "one by one", tensors, {{"a", "b"}}).take();
    for (const auto& tensor : all) ASSERT_TRUE(writer.append(tensor.bytes).ok());
    ASSERT_TRUE(writer.commit().ok());
    // Started but not finished: nothing is left.
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

TEST(Safetensors, SameInputGivesTheSameBytes) {
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

// Other writers may list the header in a different order than the bytes; only the order of the bytes matters.
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

TEST(SafetensorsDeathTest, WriterStopsOnInconsistentTensors) {
  const std::vector<SafetensorsTensor> wrong_size{{"w", Dtype::kF32, {2}, bytes_of("1234567")}};
  EXPECT_DEATH((void)write_safetensors("/nowhere/x", wrong_size),
               "tensor w of shape \\[2\\] and dtype F32 has 7 bytes");
  const std::vector<SafetensorsTensor> twice{{"w", Dtype::kU8, {0}, {}}, {"w", Dtype::kU8, {0}, {}}};
  EXPECT_DEATH((void)write_safetensors("/nowhere/x", twice), "tensor w is given twice");
  const std::vector<SafetensorsTensor> reserved{{"__metadata__", Dtype::kU8, {0}, {}}};
  EXPECT_DEATH((void)write_safetensors("/nowhere/x", reserved), "__metadata__");
}

TEST(Safetensors, OnAFullDiskKeepsTheOldFileAndNothingElse) {
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

TEST(TensorBytes, CountsBytesOrReportsOverflow) {
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

TEST(Dtype, NamesAndSizesMatchTheFormat) {
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

}  // namespace
}  // namespace thinpipe
