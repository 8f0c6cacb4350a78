#include "checkpoint/merge.h"

#include <gtest/gtest.h>

#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;

// Tensors of bytes: name and content.
void write_stage(const std::filesystem::path& path, const std::vector<std::pair<std::string, std::string>>& tensors) {
  std::vector<SafetensorsTensor> list;
  for (const auto& [name, bytes] : tensors) {
    list.push_back(
        {name, Dtype::kU8, {static_cast<int64_t>(bytes.size())}, std::as_bytes(std::span(bytes.data(), bytes.size()))});
  }
  ASSERT_TRUE(write_safetensors(path, list, {{"stage", path.filename().string()}}).ok());
}

std::string text_of(const SafetensorsTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

TEST(Merge, TakesThePrefixedTensorsInOrderAndTheBasisOnce) {
  const ScratchFolder folder;
  write_stage(folder / "0",
              {{"param.embedding", "eee"}, {"moment.embedding", "mm"}, {"basis.u", "UUUU"}, {"param.b0", "0"}});
  write_stage(folder / "1", {{"basis.u", "VVVV"}, {"param.b1", ""}, {"parameter", "p"}, {"param.head", "hh"}});
  ASSERT_TRUE(merge_safetensors({folder / "0", folder / "1"}, "param.", folder / "out", {{"run", "r"}}).ok());
  const auto out = SafetensorsFile::open(folder / "out");
  ASSERT_TRUE(out.ok()) << out.error().message;
  std::string names;
  for (const auto& tensor : out.value().tensors()) names += tensor.name + "=" + text_of(tensor) + " ";
  EXPECT_EQ(names, "embedding=eee b0=0 b1= head=hh basis=UUUU ");
  EXPECT_EQ(out.value().metadata(), (SafetensorsMetadata{{"run", "r"}}));
}

TEST(Merge, KeepsShapesAndTypes) {
  const ScratchFolder folder;
  const std::string bytes = "12345678";
  const std::vector<SafetensorsTensor> tensors{
      {"param.w", Dtype::kBf16, {2, 1, 2}, std::as_bytes(std::span(bytes.data(), bytes.size()))}};
  ASSERT_TRUE(write_safetensors(folder / "0", tensors).ok());
  // The file it reads may be the one it writes.
  ASSERT_TRUE(merge_safetensors({folder / "0"}, "param.", folder / "0", {}).ok());
  const auto out = SafetensorsFile::open(folder / "0");
  ASSERT_TRUE(out.ok() && out.value().find("w") != nullptr);
  EXPECT_EQ(out.value().find("w")->dtype, Dtype::kBf16);
  EXPECT_EQ(out.value().find("w")->shape, (std::vector<int64_t>{2, 1, 2}));
  EXPECT_EQ(text_of(*out.value().find("w")), bytes);
  EXPECT_EQ(out.value().tensors().size(), 1u);
}

TEST(Merge, RefusesNamesThatStandTwiceOrCannotStand) {
  const ScratchFolder folder;
  const auto refusal = [&](const std::vector<std::string>& names) {
    std::vector<std::filesystem::path> paths;
    for (const auto& name : names) paths.push_back(folder / name);
    const auto status = merge_safetensors(paths, "param.", folder / "out", {});
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
    return status.ok() ? "" : status.error().message;
  };
  const std::string at = folder.path().string() + "/";
  write_stage(folder / "a", {{"param.w", "1"}});
  write_stage(folder / "b", {{"param.w", "2"}});
  EXPECT_EQ(refusal({"a", "b"}),
            at + "b: tensor \"param.w\" would be called \"w\" in the merged file, as is one of " + at + "a");
  write_stage(folder / "basis", {{"param.basis", "1"}, {"basis.u", "2"}});
  EXPECT_NE(refusal({"basis"}).find("tensor \"basis.u\" would be called \"basis\" in the merged file"),
            std::string::npos);
  write_stage(folder / "reserved", {{"param.__metadata__", "1"}});
  EXPECT_NE(refusal({"reserved"}).find("which is no name for a tensor"), std::string::npos);
  write_stage(folder / "nameless", {{"param.", "1"}});
  EXPECT_NE(refusal({"nameless"}).find("which is no name for a tensor"), std::string::npos);
}

TEST(Merge, RefusesFilesWithoutParametersAndFilesThatAreNone) {
  const ScratchFolder folder;
  write_stage(folder / "a", {{"moment.w", "1"}, {"basis.u", "2"}});
  EXPECT_EQ(merge_safetensors({folder / "a"}, "param.", folder / "out", {}).error().message,
            fmt::format("cannot write {}/out: none of the 1 stage files has a tensor whose name starts with \"param.\"",
                        folder.path().string()));
  EXPECT_FALSE(merge_safetensors({}, "param.", folder / "out", {}).ok());
  EXPECT_NE(merge_safetensors({folder / "none"}, "param.", folder / "out", {}).error().message.find("No such file"),
            std::string::npos);
  ASSERT_TRUE(write_file_atomically(folder / "junk", "junk").ok());
  EXPECT_NE(
      merge_safetensors({folder / "junk"}, "param.", folder / "out", {}).error().message.find("junk: not a valid"),
      std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace thinpipe
