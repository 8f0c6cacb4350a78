// T_fixed as a file: with the seed's own table from a file the run is the same, bit for bit; any other table than the
// named one is refused with one line.
#include "pipeline/table_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/files.h"
#include "model/fixed_table.h"
#include "saved_run.h"

namespace thinpipe {
namespace {

using test::kTinyVocab;
using test::ScratchFolder;
using test::TinyCorpus;
using test::TinyRun;

RunConfig config_of(Precision precision) {
  auto config = test::tiny_config(ModelMode::kSubspace);
  config.pipeline.stages = 2;
  config.train.precision = precision;
  config.boundary.pack = Pack::kFp32;
  return config;
}

FixedTable seeds_table(const RunConfig& config) {
  return FixedTable(config.train.seed, kTinyVocab, config.model.d, config.model.subspace.anchor_std,
                    at::TensorOptions().dtype(at::kFloat));
}

class TableFile : public ::testing::Test {
 protected:
  TableFile() {
    config_.model.table = save_table(folder_.path(), seeds_table(config_).whole()).take();
    path_ = table_path(folder_.path(), config_.model.table);
  }
  std::string refusal() const {
    const auto table = table_of_run(folder_.path(), config_, kTinyVocab);
    const auto message = table.ok() ? "" : table.error().message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  }
  void write(const NamedTensors& tensors) const { save_tensors(path_, tensors).take(); }

  const ScratchFolder folder_;
  RunConfig config_ = config_of(Precision::kFloat32);
  std::filesystem::path path_;
};

TEST_F(TableFile, IsNamedByTheHashOfItsRows) {
  EXPECT_EQ(config_.model.table, seeds_table(config_).hash());
  EXPECT_EQ(path_, folder_ / "tables" / (seeds_table(config_).hash() + ".safetensors"));
  const auto table = table_of_run(folder_.path(), config_, kTinyVocab).take();
  EXPECT_TRUE(at::equal(table, seeds_table(config_).whole()));
  EXPECT_EQ(FixedTable(table, table.options()).hash(), config_.model.table);
  EXPECT_EQ(FixedTable(table, table.options().dtype(at::kDouble)).hash(), config_.model.table);
  validate(config_);
}

TEST_F(TableFile, IsNotNeededIfTheConfigNamesNone) {
  EXPECT_FALSE(table_of_run("/nowhere", config_of(Precision::kFloat32), kTinyVocab).take().defined());
  auto dense = test::tiny_config(ModelMode::kDense);
  EXPECT_FALSE(table_of_run("/nowhere", dense, kTinyVocab).take().defined());
}

TEST_F(TableFile, SeedsTableInAFile_GivesTheSameBitsAsWithoutAFile) {
  const TinyCorpus corpus;
  for (const Anchors anchors : {Anchors::kFixed, Anchors::kStage}) {
    for (const Precision precision : {Precision::kFloat32, Precision::kBf16}) {
      auto plain = config_of(precision);
      plain.model.subspace.anchors = anchors;
      if (anchors == Anchors::kStage) plain.model.subspace.anchor_groups = {2, 2};
      auto with_file = plain;
      with_file.model.table = config_.model.table;
      TinyRun expected(plain, corpus);
      TinyRun run(with_file, corpus, table_of_run(folder_.path(), with_file, kTinyVocab).take());
      EXPECT_EQ(run.steps(0, 10), expected.steps(0, 10));
      EXPECT_EQ(run.validate(), expected.validate());
    }
  }
}

TEST_F(TableFile, ForeignTableIsUsed) {
  const TinyCorpus corpus;
  auto config = config_;
  const auto other = seeds_table(config_).whole().mul(1.25);
  config.model.table = save_table(folder_.path(), other).take();
  TinyRun plain(config_of(Precision::kFloat32), corpus);
  TinyRun run(config, corpus, table_of_run(folder_.path(), config, kTinyVocab).take());
  const auto std = config.model.subspace.anchor_std;
  EXPECT_NE(run.steps(0, 1), plain.steps(0, 1));
  // The seed's table with another std is the same table up to rounding.
  auto scaled = config_of(Precision::kFloat32);
  scaled.model.subspace.anchor_std = 1.25 * std;
  TinyRun same(scaled, corpus), again(config, corpus, other);
  EXPECT_LT(test::largest_relative_difference(again.steps(0, 5), same.steps(0, 5)), 1e-5);
}

TEST_F(TableFile, MissingFileIsRefused) {
  std::filesystem::remove(path_);
  EXPECT_EQ(refusal(), "token table " + path_.string() + ": is missing, but model.table names it");
  const TinyCorpus corpus;
  EXPECT_THROW(TinyRun(config_, corpus), UserError) << "the seed's table must not replace it";
}

TEST_F(TableFile, DamagedFileIsRefused) {
  const auto bytes = read_file(path_).take();
  for (const size_t kept : {size_t{0}, size_t{7}, size_t{40}, bytes.size() - 1}) {
    write_file_atomically(path_, bytes.substr(0, kept)).take();
    EXPECT_NE(refusal().find(path_.string()), std::string::npos) << kept;
  }
  auto flipped = bytes;
  flipped[flipped.size() - 5] ^= 1;
  write_file_atomically(path_, flipped).take();
  EXPECT_NE(refusal().find("its rows have the hash "), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("model.table says " + config_.model.table), std::string::npos) << refusal();
}

TEST_F(TableFile, TableOfAnotherModelOrTypeIsRefused) {
  const auto table = seeds_table(config_).whole();
  write({{"t_fixed", table.to(at::kDouble)}});
  EXPECT_NE(refusal().find("is [300, 24] of F64, needs [300, 24] of F32"), std::string::npos) << refusal();
  write({{"t_fixed", table.narrow(0, 0, 299)}});
  EXPECT_NE(refusal().find("is [299, 24] of F32, needs [300, 24] of F32"), std::string::npos) << refusal();
  write({{"t_fixed", table.t()}});
  EXPECT_NE(refusal().find("is [24, 300] of F32"), std::string::npos) << refusal();
  for (const NamedTensors& tensors : {NamedTensors{{"table", table}}, {{"t_fixed", table}, {"more", table}}, {}}) {
    write(tensors);
    EXPECT_NE(refusal().find("needs exactly one tensor, 't_fixed'"), std::string::npos) << refusal();
  }
}

}  // namespace
}  // namespace thinpipe
