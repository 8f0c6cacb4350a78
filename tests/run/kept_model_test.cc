#include "run/kept_model.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "config/config_file.h"
#include "run/run_changes.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

const std::string kHash(64, 'a');

control::ModelFiles announced(const std::vector<std::pair<std::string, uint64_t>>& files) {
  control::ModelFiles list;
  list.set_ready(true);
  for (const auto& [name, bytes] : files) {
    auto& one = *list.add_files();
    one.set_unit(name);
    one.set_bytes(bytes);
    one.set_sha256(kHash);
  }
  return list;
}

class KeptModelFiles : public ::testing::Test {
 protected:
  KeptModelFiles() { run_.set_vocab(config_.data.vocab); }
  std::string fault(const control::ModelFiles& files) const {
    const auto status = check_model_files(files, run_, config_);
    return status ? "" : status.error().message;
  }

  const RunConfig config_ = parse_config("[model]\ntable = \"\"\n", "the defaults");
  control::RunDescription run_;
};

TEST_F(KeptModelFiles, AreThoseThatARunNeeds_EachOnce) {
  EXPECT_EQ(fault(announced({{"config.toml", 900}, {"tokenizer.model", 900}, {"model.safetensors", 900}})), "");
  EXPECT_NE(fault(announced({{"config.toml", 900}, {"tokenizer.model", 900}})).find("2 of its 3"), std::string::npos);
  EXPECT_NE(fault(announced({{"config.toml", 900}, {"config.toml", 900}, {"model.safetensors", 900}})), "");
  for (const char* strange : {"../../.bashrc", "/etc/passwd", "joined.json", "", "tables/x.safetensors"}) {
    EXPECT_NE(
        fault(announced({{"config.toml", 900}, {"tokenizer.model", 900}, {"model.safetensors", 9}, {strange, 9}})), "")
        << strange;
  }
}

TEST_F(KeptModelFiles, AreNoLargerThanTheConfigExplains) {
  for (const auto* name : {"config.toml", "tokenizer.model", "model.safetensors"}) {
    auto files = announced({{"config.toml", 900}, {"tokenizer.model", 900}, {"model.safetensors", 900}});
    for (auto& file : *files.mutable_files()) {
      if (file.unit() == name) file.set_bytes(uint64_t{1} << 40);
    }
    EXPECT_NE(fault(files).find("has at most"), std::string::npos) << name;
  }
  auto files = announced({{"config.toml", 900}, {"tokenizer.model", 900}, {"model.safetensors", 900}});
  files.mutable_files(1)->set_sha256("../x");
  EXPECT_NE(fault(files).find("without its hash"), std::string::npos);
}

TEST(KeptModel, NameOfARun_IsPlain) {
  EXPECT_EQ(plain_run_name("kjv-1", "0123456789abcdef"), "kjv-1");
  EXPECT_EQ(plain_run_name("../../a b", "0123456789abcdef"), "a-b");
  EXPECT_EQ(plain_run_name("..", "0123456789abcdef"), "run-01234567");
  EXPECT_EQ(plain_run_name("", "0123456789abcdef"), "run-01234567");
}

TEST(KeptModel, FetchedFiles_BecomeARunOnlyIfTheyCanBeUsed) {
  const test::ScratchFolder scratch;
  ModelFetch fetch;
  fetch.folder = scratch.path() / "joined";
  fetch.config = parse_config("[model]\ntable = \"\"\n", "the defaults");
  fetch.run.set_run("0123456789abcdef");
  fetch.run.set_name("kjv");
  fetch.run.set_config_sha256(config_identity(fetch.config));
  const auto runs = scratch.path() / "runs";
  const auto bring = [&](const std::string& config) {
    make_directories(fetch.folder / "model").take();
    for (const auto& name : kept_files(fetch.config)) write_file_atomically(fetch.folder / "model" / name, "x").take();
    write_file_atomically(fetch.folder / "model" / "config.toml", config).take();
  };
  const auto usable = [](const std::filesystem::path&) { return Status(); };
  const auto text = to_toml(fetch.config);

  bring("[model]\nd = 64\n");
  EXPECT_FALSE(keep_fetched(fetch, runs, "", usable).ok()) << "another run's config";
  bring("nonsense");
  EXPECT_FALSE(keep_fetched(fetch, runs, "", usable).ok());
  bring(text);
  EXPECT_FALSE(keep_fetched(fetch, runs, "", [](const auto&) { return Status(Error{"no"}); }).ok());
  EXPECT_TRUE(!std::filesystem::exists(runs) || std::filesystem::is_empty(runs)) << "nothing half-written";

  bring(text);
  EXPECT_EQ(keep_fetched(fetch, runs, "", usable).take(), runs / "kjv");
  bring(text);
  EXPECT_EQ(keep_fetched(fetch, runs, "", usable).take(), runs / "kjv-2") << "a run of that name stays";
  bring(text);
  EXPECT_EQ(keep_fetched(fetch, runs, runs / "kjv", usable).take(), runs / "kjv") << "the same model";
  EXPECT_FALSE(std::filesystem::exists(fetch.folder / "model"));
}

}  // namespace
}  // namespace thinpipe
