// Sentencepiece models of every kind, not only of the one that `thinpipe tokenizer train` makes.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "text/sentencepiece_module.h"

namespace thinpipe::test {

// The model that sentencepiece trains on `text` with these options.
inline std::string train_with(std::map<std::string, std::string> options, const std::string& text) {
  class OneChunk final : public ChunkSource {
   public:
    explicit OneChunk(const std::string& chunk) : chunk_(&chunk) {}
    const std::string* next() override { return std::exchange(chunk_, nullptr); }

   private:
    const std::string* chunk_;
  };
  options.insert({{"max_sentence_length", "100000"}, {"hard_vocab_limit", "false"}});
  options.insert({{"num_threads", "1"}, {"minloglevel", "3"}});
  OneChunk chunk(text);
  std::string model;
  EXPECT_EQ(sentencepiece_api().train({options.begin(), options.end()}, chunk, &model), "");
  return model;
}

}  // namespace thinpipe::test
