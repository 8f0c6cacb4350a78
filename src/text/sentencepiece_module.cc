// The loadable module around sentencepiece (sentencepiece_module.h says why it exists). It holds nothing else.
#include "text/sentencepiece_module.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <type_traits>
#include <unordered_map>

namespace thinpipe {
namespace {

namespace sp = sentencepiece;
static_assert(std::is_same_v<int32_t, int>, "sentencepiece's ids are passed on without conversion");

class LoadedModel final : public PieceModel {
 public:
  bool load(std::string_view model) { return processor_.LoadFromSerializedProto(model).ok(); }

  int32_t piece_count() const override { return processor_.GetPieceSize(); }
  int32_t bos() const override { return processor_.bos_id(); }
  int32_t eos() const override { return processor_.eos_id(); }
  std::string encode(std::string_view text, std::vector<int32_t>* ids) const override {
    return reason(processor_.Encode(text, ids));
  }
  std::string decode(const std::vector<int32_t>& ids, std::string* text) const override {
    return reason(processor_.Decode(ids, text));
  }

 private:
  static std::string reason(const sp::util::Status& status) { return status.ok() ? "" : status.ToString(); }

  sp::SentencePieceProcessor processor_;
};

class ChunkIterator final : public sp::SentenceIterator {
 public:
  explicit ChunkIterator(ChunkSource& chunks) : chunks_(chunks) { Next(); }
  bool done() const override { return chunk_ == nullptr; }
  const std::string& value() const override { return *chunk_; }
  sp::util::Status status() const override { return {}; }
  void Next() override { chunk_ = chunks_.next(); }

 private:
  ChunkSource& chunks_;
  const std::string* chunk_ = nullptr;
};

std::unique_ptr<PieceModel> load(std::string_view model) {
  auto loaded = std::make_unique<LoadedModel>();
  // An empty string would be a valid protobuf message: a model without pieces.
  if (model.empty() || !loaded->load(model) || loaded->piece_count() <= 0) return nullptr;
  return loaded;
}

std::string train(const std::vector<std::pair<std::string, std::string>>& options, ChunkSource& chunks,
                  std::string* model) {
  ChunkIterator iterator(chunks);
  const std::unordered_map<std::string, std::string> named(options.begin(), options.end());
  const auto status = sp::SentencePieceTrainer::Train(named, &iterator, model);
  return status.ok() ? "" : status.ToString();
}

constexpr SentencePieceApi kApi{load, train};

}  // namespace
}  // namespace thinpipe

extern "C" const thinpipe::SentencePieceApi* thinpipe_sentencepiece() { return &thinpipe::kApi; }
