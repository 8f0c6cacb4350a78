#include "text/tokenizer.h"

#include <dlfcn.h>

#include <bit>
#include <functional>

#include "base/bytes.h"
#include "base/files.h"
#include "base/program_files.h"

namespace thinpipe {
namespace {

const SentencePieceApi* load_module() {
  int flags = RTLD_NOW | RTLD_LOCAL;
#ifndef THINPIPE_SANITIZED
  flags |= RTLD_DEEPBIND;  // sanitizers refuse it; their builds tokenise only in programs without libtorch
#endif
  const auto path = program_file(THINPIPE_SENTENCEPIECE_NAME, "the tokenizer module", THINPIPE_SENTENCEPIECE_BUILT);
  void* module = ::dlopen(path.c_str(), flags);
  if (module == nullptr) throw UserError(fmt::format("cannot load the tokenizer module: {}", ::dlerror()));
  using Entry = const SentencePieceApi* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(module, "thinpipe_sentencepiece"));
  TP_CHECK(entry != nullptr, "{} has no entry point", path.string());
  return entry();
}

enum class Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint32_t number = 0;
  Wire wire = Wire::kVarint;
  uint64_t value = 0;      // of a number
  std::string_view bytes;  // of a text or a message
};

// The fields of one message, one after the other.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  bool at_end() const { return rest_.empty(); }

  // False if the bytes are not a field.
  bool next(Field& field) {
    uint64_t key = 0;
    if (!varint(key) || key >> 3 == 0 || key >> 3 > 0x1FFFFFFF) return false;
    field = {};
    field.number = static_cast<uint32_t>(key >> 3);
    field.wire = static_cast<Wire>(key & 7);
    switch (field.wire) {
      case Wire::kVarint:
        return varint(field.value);
      case Wire::kFixed64:
        return fixed<uint64_t>(field.value);
      case Wire::kFixed32:
        return fixed<uint32_t>(field.value);
      case Wire::kBytes: {
        uint64_t length = 0;
        if (!varint(length) || length > rest_.size()) return false;
        field.bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return true;
      }
    }
    return false;  // groups, and numbers the format does not have
  }

 private:
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (rest_.empty()) return false;
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      if (shift == 63 && byte > 1) return false;
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  template <class T>
  bool fixed(uint64_t& value) {
    if (rest_.size() < sizeof(T)) return false;
    value = get_le<T>(rest_);
    rest_.remove_prefix(sizeof(T));
    return true;
  }

  std::string_view rest_;
};

// Hands every field to `take`, which returns whether its wire type and value are possible.
Status read_message(std::string_view message, std::string_view name, const std::function<bool(const Field&)>& take) {
  FieldReader reader(message);
  Field field;
  while (!reader.at_end()) {
    if (!reader.next(field)) return Error{fmt::format("{} is cut short or not a protobuf message", name)};
    if (!take(field)) return Error{fmt::format("{} has a field {} that it cannot have", name, field.number)};
  }
  return {};
}

bool take_flag(const Field& field, bool& flag) {
  flag = field.value != 0;
  return field.wire == Wire::kVarint;
}

// The field numbers are those of sentencepiece_model.proto, a stable format.
Status read_piece(std::string_view message, std::vector<Piece>& pieces) {
  Piece piece;
  auto status = read_message(message, fmt::format("piece {}", pieces.size()), [&](const Field& field) {
    switch (field.number) {
      case 1:
        piece.text = field.bytes;
        return field.wire == Wire::kBytes;
      case 2:
        piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
        return field.wire == Wire::kFixed32;
      case 3:
        if (field.value < 1 || field.value > 6) return false;
        piece.type = static_cast<PieceType>(field.value - 1);
        return field.wire == Wire::kVarint;
      default:
        return true;
    }
  });
  if (status) pieces.push_back(std::move(piece));
  return status;
}

Status read_trainer_spec(std::string_view message, TokenizerFacts& facts) {
  return read_message(message, "the trainer's specification", [&](const Field& field) {
    switch (field.number) {
      case 3:
        facts.bpe = field.value == 2;
        return field.wire == Wire::kVarint;
      case 24:
        return take_flag(field, facts.whitespace_as_suffix);
      case 35:
        return take_flag(field, facts.byte_fallback);
      default:
        return true;
    }
  });
}

Status read_normalizer_spec(std::string_view message, TokenizerFacts& facts) {
  return read_message(message, "the normaliser's specification", [&](const Field& field) {
    switch (field.number) {
      case 1:
        facts.normalizer = field.bytes;
        return field.wire == Wire::kBytes;
      case 2:
        facts.has_normalizer_rules = !field.bytes.empty();
        return field.wire == Wire::kBytes;
      case 3:
        return take_flag(field, facts.add_dummy_prefix);
      case 4:
        return take_flag(field, facts.remove_extra_whitespaces);
      case 5:
        return take_flag(field, facts.escape_whitespaces);
      default:
        return true;
    }
  });
}

}  // namespace

const SentencePieceApi& sentencepiece_api() {
  static const SentencePieceApi* const api = load_module();
  return *api;
}

Result<ModelProto> parse_model_proto(std::string_view model) {
  ModelProto proto;
  Status inner;
  const auto status = read_message(model, "the model", [&](const Field& field) {
    if (field.number == 1) {
      inner = read_piece(field.bytes, proto.pieces);
    } else if (field.number == 2) {
      inner = read_trainer_spec(field.bytes, proto.facts);
    } else if (field.number == 3) {
      inner = read_normalizer_spec(field.bytes, proto.facts);
    } else if (field.number == 5) {
      TokenizerFacts decoding;
      inner = read_normalizer_spec(field.bytes, decoding);
      proto.facts.has_denormalizer_rules = decoding.has_normalizer_rules;
    } else {
      return true;
    }
    return inner.ok() && field.wire == Wire::kBytes;
  });
  TRY(std::move(inner));
  TRY(status);
  for (size_t id = 0; id < proto.pieces.size(); ++id) {
    if (proto.pieces[id].type == PieceType::kUnknown) proto.facts.unknown = static_cast<int32_t>(id);
  }
  return proto;
}

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
  auto bytes = TRY(read_file(path));
  return parse(std::move(bytes), path.string());
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
