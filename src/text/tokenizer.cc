#include "text/tokenizer.h"

#include "base/files.h"

namespace thinpipe {

Tokenizer::Tokenizer(std::unique_ptr<PieceModel> pieces, ModelProto proto, std::string model, std::string name)
    : pieces_(std::move(pieces)),
      proto_(std::move(proto)),
      model_(std::move(model)),
      name_(std::move(name)),
      vocab_(pieces_->piece_count()),
      bos_(pieces_->bos()),
      eos_(pieces_->eos()) {}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  auto bytes = read_file(path);
  if (!bytes) return bytes.error();
  return parse(std::move(bytes.value()), path.string());
}

Result<Tokenizer> Tokenizer::parse(std::string model, const std::string& name) {
  auto pieces = sentencepiece_api().load(model);
  if (!pieces) {
    return Error{fmt::format(
        "{}: not a complete sentencepiece model: needs a whole .model file, as `thinpipe tokenizer train` writes one",
        name)};
  }
  if (pieces->bos() < 0 || pieces->bos() >= pieces->piece_count()) {
    return Error{fmt::format("{}: the sentencepiece model has no begin-of-text token; train it with bos_id", name)};
  }
  auto proto = parse_model_proto(model);
  if (!proto) return Error{fmt::format("{}: not a sentencepiece model: {}", name, proto.error().message)};
  if (proto.value().pieces.size() != static_cast<size_t>(pieces->piece_count())) {
    return Error{fmt::format("{}: not a sentencepiece model: it lists {} pieces and uses {}", name,
                             proto.value().pieces.size(), pieces->piece_count())};
  }
  return Tokenizer(std::move(pieces), std::move(proto).take(), std::move(model), name);
}

const Piece& Tokenizer::piece(int32_t id) const {
  TP_CHECK(id >= 0 && id < vocab_, "piece {} of {}", id, vocab_);
  return proto_.pieces[static_cast<size_t>(id)];
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  const auto problem = pieces_->encode(text, &ids);
  if (!problem.empty()) throw UserError(fmt::format("{}: the tokenizer cannot encode text: {}", name_, problem));
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_) {
      return Error{fmt::format("token {} at position {} is not in the vocabulary of {}", ids[i], i, vocab_)};
    }
  }
  std::string text;
  const auto problem = pieces_->decode({ids.begin(), ids.end()}, &text);
  if (!problem.empty()) return Error{fmt::format("{}: cannot decode: {}", name_, problem)};
  return text;
}

}  // namespace thinpipe
