#include "text/model_proto.h"

#include <bit>
#include <functional>

namespace thinpipe {
namespace {

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

  // False when the bytes are no field.
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
        return fixed(8, field.value);
      case Wire::kFixed32:
        return fixed(4, field.value);
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

  bool fixed(size_t bytes, uint64_t& value) {
    if (rest_.size() < bytes) return false;
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
    rest_.remove_prefix(bytes);
    return true;
  }

  std::string_view rest_;
};

// Hands every field to `take`, which says whether its wire type and value are possible.
Status read_message(std::string_view message, std::string_view name, const std::function<bool(const Field&)>& take) {
  FieldReader reader(message);
  Field field;
  while (!reader.at_end()) {
    if (!reader.next(field)) return Error{fmt::format("{} is cut short or no protobuf message", name)};
    if (!take(field)) return Error{fmt::format("{} has a field {} that it cannot have", name, field.number)};
  }
  return {};
}

bool take_flag(const Field& field, bool& flag) {
  flag = field.value != 0;
  return field.wire == Wire::kVarint;
}

// The numbers of the fields are those of sentencepiece_model.proto, a format that is kept stable.
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
  if (!inner) return inner.error();
  if (!status) return status.error();
  for (size_t id = 0; id < proto.pieces.size(); ++id) {
    if (proto.pieces[id].type == PieceType::kUnknown) proto.facts.unknown = static_cast<int32_t>(id);
  }
  return proto;
}

}  // namespace thinpipe
