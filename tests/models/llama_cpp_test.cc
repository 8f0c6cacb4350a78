// GGUF files in the real llama.cpp: it tokenises text like sentencepiece. (tests/models/interop_test.cc compares what
// it computes.)
#include "models/llama_cpp.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "models/gguf.h"
#include "models/odd_strings.h"
#include "models/tiny_llama.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using nlohmann::json;
using test::kTinyLlama;
using test::LlamaCpp;
using test::ScratchFolder;
using test::tiny_tokenizer;

TEST(LlamaCppMissing, FailsIfLlamaCppIsRequired) {
  EXPECT_FATAL_FAILURE(test::skip_or_fail("npm is not installed", /*needed=*/true),
                       "llama.cpp cannot be used: npm is not installed");
  test::skip_or_fail("", /*needed=*/true);
  test::skip_or_fail("", /*needed=*/false);
  EXPECT_FALSE(IsSkipped());
}

class LlamaCppTokenizerTest : public testing::Test {
 protected:
  void SetUp() override { test::require_llama_cpp(); }

  static void expect_same_ids(const Tokenizer& tokenizer) {
    const ScratchFolder scratch;
    LlamaShape shape = kTinyLlama;
    shape.blocks = 1;
    write_gguf(scratch / "m.gguf", shape, tokenizer, test::tiny_llama(shape)).take();
    const auto texts = test::odd_strings();
    ASSERT_EQ(texts.size(), 200U);
    const json answer = LlamaCpp::get().run(scratch / "m.gguf", {{"tokenize", texts}});
    ASSERT_FALSE(answer.contains("error")) << answer["error"];
    EXPECT_EQ(answer["bos"], 1);
    EXPECT_EQ(answer["eos"], 2);
    EXPECT_EQ(answer["add_bos"], true);
    size_t same = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const json ours = tokenizer.encode(texts[i]);
      same += answer["tokens"][i] == ours;
      EXPECT_EQ(answer["tokens"][i], ours) << json(texts[i]).dump();
    }
    fmt::print("{} of {} strings are split in the same way\n", same, texts.size());
  }
};

TEST_F(LlamaCppTokenizerTest, SplitsTextLikeSentencepiece) { expect_same_ids(tiny_tokenizer()); }

TEST_F(LlamaCppTokenizerTest, SplitsTextLikeSentencepieceWithoutALeadingSpace) {
  // Appends to the model's normaliser, field 3, the option for the leading space, field 3: the last one counts.
  const std::string model = tiny_tokenizer().model() + std::string("\x1a\x02\x18\x00", 4);
  const auto tokenizer = Tokenizer::parse(model, "no space").take();
  ASSERT_FALSE(tokenizer.facts().add_dummy_prefix);
  ASSERT_NE(tokenizer.encode("The"), tiny_tokenizer().encode("The"));
  expect_same_ids(tokenizer);
}

}  // namespace
}  // namespace thinpipe
