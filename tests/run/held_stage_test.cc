// How a worker builds its stage from a Form, and where it gets its tokens.
#include "run/worker/held_stage.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "support/sanitized.h"
#include "support/scratch.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;

// A worker in a run of two stages; its coordinator does not answer.
class HeldStages : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
    auto& config = sources_.config;
    config.model.mode = ModelMode::kDense;
    config.model.d = 16;
    config.model.blocks = 2;
    config.model.heads = config.model.kv_heads = 2;
    config.model.mlp_width = 16;
    config.pipeline.stages = 2;
    config.train.seq_len = 8;
    config.train.microbatch = 2;
    std::string text;
    for (int i = 0; i < 2000; ++i) text += fmt::format("line {} says {} and {}\n\n", i, i * i % 97, i * 7 % 31);
    write_file_atomically(folder_ / "text.txt", text).take();
    config.data.corpus = (folder_ / "text.txt").string();
    config.data.vocab = 300;
    const auto corpus = prepare_corpus(config.data, folder_ / "cache");
    sources_.run.set_run("a run");
    sources_.run.set_vocab(corpus.vocab);
    sources_.run.set_corpus_id(corpus.id);
    sources_.folder = folder_ / "worker";
    sources_.coordinator.addresses = {"127.0.0.1:1"};
  }

  std::unique_ptr<HeldStage> take_seat(int64_t stage) {
    control::Form form;
    form.mutable_seat()->set_stage(stage);
    form.set_restore(true);
    for (int i = 0; i < 2; ++i) form.add_cuts(1);
    StateFiles files({sources_.coordinator, "a run", sources_.folder / "states", CheckpointMode::kAuto, {}, {}});
    return HeldStage::make(form, sources_, files).take();
  }

  ScratchFolder folder_;
  StageSources sources_;
};

TEST_F(HeldStages, MovedToTheFirstStage_ReadsItsOwnCopyOfTheCorpus) {
  sources_.corpora = folder_ / "cache";
  EXPECT_EQ(take_seat(1)->tokens(), nullptr) << "only the first stage needs tokens";
  const auto first = take_seat(0);
  ASSERT_NE(first->tokens(), nullptr);
  const auto batch = first->tokens()->training(0, 0);
  EXPECT_TRUE(batch.ok()) << batch.error().message;
}

TEST_F(HeldStages, Form_WithAStepAndNoFiles_IsRefused) {
  control::Form form;
  form.set_step(3);
  for (int i = 0; i < 2; ++i) form.add_cuts(1);
  StateFiles files({sources_.coordinator, "a run", sources_.folder / "states", CheckpointMode::kAuto, {}, {}});
  const auto made = HeldStage::make(form, sources_, files);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().message, "was told to begin at step 3 without the files of its state");
}

}  // namespace
}  // namespace thinpipe
