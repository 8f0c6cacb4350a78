// Cutting a checkpoint anew: every tensor goes with its block, its group or its end of the model, byte for byte; what
// does not fit together is refused by name; an interruption leaves the old cuts or the new ones.
#include "checkpoint/recut.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

#include "base/files.h"
#include "base/sha256.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/safetensors.h"
#include "support/faulty_file_system.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::ok;
using test::ScratchFolder;
using Cuts = std::vector<int64_t>;

// A tensor of a stage file whose bytes are its own.
struct Piece {
  std::string name;
  std::string bytes;
};

struct StageFile {
  std::vector<Piece> pieces;
  SafetensorsMetadata metadata;

  Piece* find(const std::string& name) {
    for (auto& piece : pieces) {
      if (piece.name == name) return &piece;
    }
    return nullptr;
  }
  void erase(const std::string& name) {
    std::erase_if(pieces, [&](const Piece& piece) { return piece.name == name; });
  }
};

std::string double_bytes(double value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// The stages of a subspace model with trainable anchors, as StageWorker::state() orders them. `dropped`: one per stage.
std::vector<StageFile> stages_of(const Cuts& cuts, const Cuts& groups, const std::vector<double>& dropped) {
  int64_t total = 0;
  for (const int64_t blocks : cuts) total += blocks;
  std::vector<StageFile> stages;
  int64_t first = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const int64_t last = first + cuts[i];
    std::vector<std::string> names;
    if (first == 0) names.emplace_back("embedding_coordinates");
    int64_t start = 0;
    for (size_t group = 0; group < groups.size(); start += groups[group++]) {
      if (first <= start && start < last) names.push_back(fmt::format("anchors.{}", group));
    }
    for (int64_t block = first; block < last; ++block) {
      for (const char* part : {"norm1", "wqkv", "a1"}) names.push_back(fmt::format("blocks.{}.{}", block, part));
    }
    if (last == total) names.insert(names.end(), {"final_norm", "head"});
    StageFile file;
    const auto add = [&](const std::string& name) { file.pieces.push_back({name, "<" + name + ">"}); };
    for (const auto& name : names) add("param." + name);
    for (const auto& name : names) {
      for (const char* moment : {"m", "v"}) add(fmt::format("optim.{}.{}", name, moment));
    }
    add("basis.u");
    if (last == total) add("tap.c");
    file.pieces.push_back({"counters.dropped_share", double_bytes(dropped[i])});
    file.metadata = {{"format", "thinpipe-stage-1"},
                     {"step", "20"},
                     {"stage", fmt::format("{} of {}", i, cuts.size())},
                     {"blocks", fmt::format("{}-{} of {}", first, last, total)},
                     {"basis_version", "2"},
                     {"run", "run-1"}};
    stages.push_back(std::move(file));
    first = last;
  }
  return stages;
}

std::vector<fs::path> write_stages(const fs::path& folder, const std::vector<StageFile>& stages) {
  fs::create_directories(folder);
  std::vector<fs::path> paths;
  for (const auto& stage : stages) {
    std::vector<SafetensorsTensor> tensors;
    for (const auto& [name, bytes] : stage.pieces) {
      const bool counter = name.starts_with("counters.");
      tensors.push_back({name,
                         counter ? Dtype::kF64 : Dtype::kU8,
                         {static_cast<int64_t>(counter ? bytes.size() / 8 : bytes.size())},
                         std::as_bytes(std::span(bytes))});
    }
    paths.push_back(folder / fmt::format("stage-{}.safetensors", paths.size()));
    EXPECT_TRUE(ok(write_safetensors(paths.back(), tensors, stage.metadata)));
  }
  return paths;
}

std::vector<std::string> bytes_of(const fs::path& folder, size_t stages) {
  std::vector<std::string> all;
  for (size_t i = 0; i < stages; ++i) {
    all.push_back(read_file(folder / fmt::format("stage-{}.safetensors", i)).take());
  }
  return all;
}

std::vector<std::string> bytes_of(const std::vector<fs::path>& paths) {
  std::vector<std::string> all;
  for (const auto& path : paths) all.push_back(read_file(path).take());
  return all;
}

std::vector<fs::path> paths_in(const fs::path& folder, size_t stages) {
  std::vector<fs::path> paths;
  for (size_t i = 0; i < stages; ++i) paths.push_back(folder / fmt::format("stage-{}.safetensors", i));
  return paths;
}

class Recut : public ::testing::Test {
 protected:
  fs::path folder(const std::string& name) const {
    fs::create_directories(folder_ / name);
    return folder_ / name;
  }
  test::FaultyFileSystem disk_;
  const ScopedFileSystem scope_{disk_};
  const ScratchFolder folder_;
};

// The files are exactly those that stages with these cuts would have written.
TEST_F(Recut, GivesWhatStagesWithTheseCutsWouldHaveWritten) {
  const Cuts groups{1, 2, 1, 2};
  const auto old_files = write_stages(folder("old"), stages_of({1, 2, 1, 2}, groups, {0, 0, 0, 0}));
  int number = 0;
  for (const Cuts& cuts : {Cuts{6}, Cuts{3, 3}, Cuts{1, 5}, Cuts{1, 3, 2}, Cuts{4, 2}, Cuts{1, 2, 1, 2}}) {
    SCOPED_TRACE(testing::PrintToString(cuts));
    const auto expected = write_stages(folder(fmt::format("expected-{}", ++number)),
                                       stages_of(cuts, groups, std::vector<double>(cuts.size(), 0.0)));
    const auto out = folder(fmt::format("out-{}", number));
    ASSERT_TRUE(ok(recut_stage_files(old_files, {cuts, groups}, out)));
    EXPECT_EQ(bytes_of(out, cuts.size()), bytes_of(expected));
    EXPECT_EQ(std::distance(fs::directory_iterator(out), {}), static_cast<ptrdiff_t>(cuts.size()));
    const auto back = folder(fmt::format("back-{}", number));
    ASSERT_TRUE(ok(recut_stage_files(paths_in(out, cuts.size()), {{1, 2, 1, 2}, groups}, back)));
    EXPECT_EQ(bytes_of(back, 4), bytes_of(old_files));
  }
}

TEST_F(Recut, WithoutAnchorGroupsCutsMayFallAnywhere) {
  const auto old_files = write_stages(folder("old"), stages_of({3, 2}, {}, {0, 0}));
  const auto expected = write_stages(folder("expected"), stages_of({1, 1, 1, 1, 1}, {}, {0, 0, 0, 0, 0}));
  ASSERT_TRUE(ok(recut_stage_files(old_files, {{1, 1, 1, 1, 1}, {}}, folder("out"))));
  EXPECT_EQ(bytes_of(folder("out"), 5), bytes_of(expected));
}

// Metrics report the largest of all stages: it must not change.
TEST_F(Recut, KeepsTheLargestDroppedShare) {
  const auto old_files = write_stages(folder("old"), stages_of({1, 1, 2}, {}, {0.25, 0.5, 0.125}));
  const auto shares = [](const fs::path& folder, size_t stages) {
    std::vector<double> found;
    for (const auto& path : paths_in(folder, stages)) {
      const auto file = SafetensorsFile::open(path).take();
      double value = 0;
      std::memcpy(&value, file.find("counters.dropped_share")->bytes.data(), sizeof value);
      found.push_back(value);
    }
    return found;
  };
  ASSERT_TRUE(ok(recut_stage_files(old_files, {{2, 2}, {}}, folder("two"))));
  EXPECT_EQ(shares(folder("two"), 2), (std::vector<double>{0.5, 0.125}));
  ASSERT_TRUE(ok(recut_stage_files(old_files, {{1, 1, 1, 1}, {}}, folder("four"))));
  EXPECT_EQ(shares(folder("four"), 4), (std::vector<double>{0.25, 0.5, 0.125, 0.125}));
  ASSERT_TRUE(ok(recut_stage_files(paths_in(folder("four"), 4), {{1, 1, 2}, {}}, folder("back"))));
  EXPECT_EQ(bytes_of(folder("back"), 3), bytes_of(old_files));
}

TEST_F(Recut, TakesADenseModel) {
  auto stages = stages_of({2, 2}, {}, {0, 0});
  for (auto& stage : stages) {
    for (const char* name : {"basis.u", "tap.c", "counters.dropped_share"}) stage.erase(name);
    for (auto& piece : stage.pieces) {
      if (const auto at = piece.name.find("embedding_coordinates"); at != std::string::npos) {
        piece.name.replace(at, 21, "embedding");
      }
    }
  }
  const auto old_files = write_stages(folder("old"), stages);
  ASSERT_TRUE(ok(recut_stage_files(old_files, {{1, 2, 1}, {}}, folder("out"))));
  ASSERT_TRUE(ok(recut_stage_files(paths_in(folder("out"), 3), {{2, 2}, {}}, folder("back"))));
  EXPECT_EQ(bytes_of(folder("back"), 2), bytes_of(old_files));
  EXPECT_EQ(SafetensorsFile::open(folder("out") / "stage-0.safetensors").take().metadata().at("blocks"), "0-1 of 4");
}

// Each case breaks one thing of a good checkpoint of two stages.
TEST_F(Recut, RefusesFilesThatDoNotFitTogether) {
  using Break = std::function<void(std::vector<StageFile>&)>;
  const std::vector<std::tuple<std::string, Break, std::string>> cases = {
      {"another step", [](auto& s) { s[1].metadata["step"] = "21"; },
       "stage-1.safetensors: metadata 'step' is \"21\", stage 0 has \"20\""},
      {"another run", [](auto& s) { s[1].metadata["run"] = "run-2"; }, "metadata 'run' is \"run-2\""},
      {"another basis version", [](auto& s) { s[1].metadata["basis_version"] = "3"; }, "metadata 'basis_version'"},
      {"no step", [](auto& s) { s[1].metadata.erase("step"); }, "metadata 'step' is \"\""},
      {"more metadata", [](auto& s) { s[1].metadata["more"] = "x"; }, "has metadata that stage 0 has not"},
      {"no blocks", [](auto& s) { s[1].metadata.erase("blocks"); },
       "stage-1.safetensors: metadata 'blocks' is \"\", needs the stage's blocks"},
      {"odd blocks", [](auto& s) { s[0].metadata["blocks"] = "0-2 of 4x"; }, "metadata 'blocks' is \"0-2 of 4x\""},
      {"empty stage", [](auto& s) { s[0].metadata["blocks"] = "0-0 of 4"; }, "metadata 'blocks' is \"0-0 of 4\""},
      {"huge blocks", [](auto& s) { s[0].metadata["blocks"] = "0-99999999999999999999 of 4"; }, "metadata 'blocks'"},
      {"a gap", [](auto& s) { s[1].metadata["blocks"] = "3-4 of 4"; }, "has blocks 3-4 of 4, where they go on from 2"},
      {"an end too early", [](auto& s) { s[1].metadata["blocks"] = "2-4 of 5"; },
       "where they go on from 2 to the last"},
      {"swapped", [](auto& s) { std::swap(s[0], s[1]); }, "metadata 'stage' is \"1 of 2\", needs '0 of 2'"},
      {"a stage too few", [](auto& s) { s.pop_back(); }, "metadata 'stage' is \"0 of 2\", needs '0 of 1'"},
      {"a missing block",
       [](auto& s) {
         for (const char* part : {"norm1", "wqkv", "a1"}) s[1].erase(fmt::format("param.blocks.2.{}", part));
       },
       "stage-1.safetensors: has no parameters of block 2"},
      {"a block of another stage",
       [](auto& s) {
         s[1].pieces.push_back({"param.blocks.1.more", "x"});
       },
       "stage-1.safetensors: tensor \"param.blocks.1.more\" does not belong in stage 1"},
      {"a moment of another stage",
       [](auto& s) {
         s[0].pieces.push_back({"optim.blocks.3.wqkv.m", "x"});
       },
       "does not belong in stage 0"},
      {"a second embedding",
       [](auto& s) {
         s[1].pieces.push_back({"param.embedding_coordinates", "x"});
       },
       "tensor \"param.embedding_coordinates\" does not belong in stage 1"},
      {"a head in the middle",
       [](auto& s) {
         s[0].pieces.push_back({"param.head", "x"});
       },
       "does not belong in stage 0"},
      {"a tap in the middle",
       [](auto& s) {
         s[0].pieces.push_back({"tap.c", "x"});
       },
       "tensor \"tap.c\" does not belong in stage 0"},
      {"an anchor table of no group",
       [](auto& s) {
         s[1].pieces.push_back({"param.anchors.7", "x"});
       },
       "tensor \"param.anchors.7\" does not belong in stage 1"},
      {"an unknown tensor",
       [](auto& s) {
         s[1].pieces.push_back({"param.surprise", "x"});
       },
       "tensor \"param.surprise\" is not one of a stage"},
      {"a block without a number",
       [](auto& s) {
         s[1].pieces.push_back({"param.blocks.x", "x"});
       },
       "is not one of a stage"},
      {"a negative block",
       [](auto& s) {
         s[1].pieces.push_back({"param.blocks.-1.a", "x"});
       },
       "is not one of a stage"},
      {"another basis", [](auto& s) { s[1].find("basis.u")->bytes = "<basis.v>"; }, "has another basis than stage 0"},
      {"no basis", [](auto& s) { s[1].erase("basis.u"); }, "has another basis than stage 0"},
      {"a counter too long", [](auto& s) { s[1].find("counters.dropped_share")->bytes += double_bytes(1); },
       "needs to be one number of F64"},
      {"no embedding", [](auto& s) { s[0].erase("param.embedding_coordinates"); },
       "stage-0.safetensors: has no embedding"},
      {"no head", [](auto& s) { s[1].erase("param.head"); }, "stage-1.safetensors: has no head"},
  };
  int number = 0;
  for (const auto& [name, breaks, message] : cases) {
    SCOPED_TRACE(name);
    auto stages = stages_of({2, 2}, {2, 2}, {0, 0});
    breaks(stages);
    const auto files = write_stages(folder(fmt::format("broken-{}", ++number)), stages);
    const auto status = recut_stage_files(files, {{4}, {2, 2}}, folder("out"));
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find(message), std::string::npos) << status.error().message;
    EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder("out")), {}), 0);
  }
}

TEST_F(Recut, RefusesCutsThatAreNotOfThisModel) {
  const auto files = write_stages(folder("old"), stages_of({2, 2}, {2, 2}, {0, 0}));
  const auto refusal = [&](const NewCuts& to) {
    const auto status = recut_stage_files(files, to, folder("out"));
    return status.ok() ? "" : status.error().message;
  };
  for (const Cuts& cuts : {Cuts{}, Cuts{3}, Cuts{2, 3}, Cuts{4, 0}, Cuts{5, -1}}) {
    EXPECT_NE(refusal({cuts, {2, 2}}).find("sum to the checkpoint's 4 blocks"), std::string::npos);
  }
  EXPECT_EQ(refusal({{1, 3}, {2, 2}}), "cuts 1, 3: a cut after block 1 would split an anchor group");
  EXPECT_NE(refusal({{4}, {2, 1}}).find("is of 4 blocks, the anchor groups are of 3"), std::string::npos);
  EXPECT_NE(recut_stage_files({}, {{4}, {}}, folder("out")).error().message, "");
  EXPECT_NE(recut_stage_files({folder_ / "nothing"}, {{4}, {}}, folder("out")).error().message.find("nothing"),
            std::string::npos);
}

// ---- in the store ----

const Cuts kOldCuts{1, 1}, kNewCuts{2};

// Few tensors: every write of each is interrupted.
std::vector<StageFile> small_stages(const Cuts& cuts) {
  auto stages = stages_of(cuts, {}, std::vector<double>(cuts.size(), 0.0));
  for (auto& stage : stages) {
    std::erase_if(stage.pieces, [](const Piece& piece) {
      return piece.name.starts_with("optim.") || piece.name.ends_with("norm1") || piece.name.ends_with("wqkv");
    });
  }
  return stages;
}

CheckpointManifest manifest_of(const Cuts& cuts, const std::vector<fs::path>& files, int64_t generation) {
  auto manifest = test::small_checkpoint(20, generation).manifest;
  manifest.cuts = cuts;
  manifest.files.clear();
  for (const auto& path : files) {
    const auto bytes = read_file(path).take();
    manifest.files.push_back({path.filename().string(), bytes.size(), sha256_hex(bytes)});
  }
  return manifest;
}

Status put(CheckpointStore& store, const CheckpointManifest& manifest, const std::vector<fs::path>& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    const auto status = test::receive(store, manifest.step, manifest.files[i], read_file(files[i]).take());
    if (!status) return status;
  }
  return store.commit(manifest);
}

TEST(RecutCheckpoint, TakesThePlaceOfTheOldOneWhateverInterruptsIt) {
  const RecutManifest says{sha256_hex("other config"), 1, "2 threads"};
  const ScratchFolder sources;
  const auto old_files = write_stages(sources / "old", small_stages(kOldCuts));
  const auto new_files = write_stages(sources / "new", small_stages(kNewCuts));
  for (const int64_t old_generation : {0, 1}) {
    const auto before = manifest_of(kOldCuts, old_files, old_generation);
    auto after = manifest_of(kNewCuts, new_files, 1);
    after.config_sha256 = says.config_sha256;
    after.machine = says.machine;
    for (const test::Fault fault : test::kAllFaults) {
      if (old_generation == 1 && fault != test::Fault::kCrash) continue;  // whatever the generation, the same moves
      size_t interrupted = 0;
      for (size_t n = 1;; ++n) {
        ASSERT_LT(n, 1000u);
        SCOPED_TRACE(fmt::format("{} at operation {}", name_of(fault), n));
        const ScratchFolder folder;
        test::FaultyFileSystem sound;
        test::FaultyFileSystem disk(fault, n);
        CheckpointStore store(folder / "checkpoints", "run-1");
        {
          const ScopedFileSystem scope(sound);
          ASSERT_TRUE(ok(put(store, before, old_files)));
        }
        bool done = false;
        {
          const ScopedFileSystem scope(disk);
          done = recut_checkpoint(store, before, {kNewCuts, {}}, says, folder / "scratch").ok();
          if (kills(fault)) disk.crash();
        }
        const ScopedFileSystem scope(sound);
        CheckpointStore restarted(folder / "checkpoints", "run-1");
        auto& now = kills(fault) ? restarted : store;
        const auto found = now.latest().take();
        ASSERT_TRUE(found.has_value());
        EXPECT_TRUE(*found == before || *found == after);
        EXPECT_TRUE(!done || *found == after);
        EXPECT_TRUE(ok(now.verify(*found)));
        // The next start: whatever lies about, the cuts are the new ones.
        EXPECT_TRUE(ok(now.clean_partials()));
        if (found->cuts != kNewCuts) {
          const auto again = recut_checkpoint(now, *found, {kNewCuts, {}}, says, folder / "scratch");
          ASSERT_TRUE(again.ok()) << again.error().message;
          EXPECT_EQ(again.value(), after);
        }
        EXPECT_EQ(*now.latest().take(), after);
        EXPECT_TRUE(ok(now.verify(after)));
        if (!disk.fault_happened()) break;
        ++interrupted;
      }
      EXPECT_GT(interrupted, 5u);
    }
  }
}

TEST(RecutCheckpoint, LeavesNothingInItsWayAndRefusesWhatCannotBeCut) {
  test::FaultyFileSystem disk;
  const ScopedFileSystem scope(disk);
  const ScratchFolder folder;
  auto stages = small_stages(kOldCuts);
  stages[1].metadata["step"] = "19";
  const auto files = write_stages(folder / "old", stages);
  CheckpointStore store(folder / "checkpoints", "run-1");
  const auto manifest = manifest_of(kOldCuts, files, 1);
  ASSERT_TRUE(ok(put(store, manifest, files)));
  fs::create_directories(folder / "scratch/left/behind");
  const auto cut =
      recut_checkpoint(store, manifest, {kNewCuts, {}}, {manifest.config_sha256, 1, ""}, folder / "scratch");
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.error().message.find("step-00000020/stage-1.safetensors: metadata 'step' is \"19\""), std::string::npos)
      << cut.error().message;
  EXPECT_FALSE(fs::exists(folder / "scratch"));
  EXPECT_EQ(*store.latest().take(), manifest);
  EXPECT_TRUE(ok(store.verify(manifest)));
}

// A generation that was rolled back must not win over the one that came after it.
TEST(RecutCheckpoint, DoesNotReplaceANewerGeneration) {
  test::FaultyFileSystem disk;
  const ScopedFileSystem scope(disk);
  const ScratchFolder folder;
  const auto files = write_stages(folder / "old", small_stages(kOldCuts));
  CheckpointStore store(folder / "checkpoints", "run-1");
  const auto manifest = manifest_of(kOldCuts, files, 5);
  ASSERT_TRUE(ok(put(store, manifest, files)));
  (void)recut_checkpoint(store, manifest, {kNewCuts, {}}, {manifest.config_sha256, 4, ""}, folder / "scratch");
  EXPECT_EQ(*store.latest().take(), manifest);
  EXPECT_TRUE(ok(store.verify(manifest)));
}

}  // namespace
}  // namespace thinpipe
