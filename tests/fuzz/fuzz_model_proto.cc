// Parses any bytes as a sentencepiece model: refuses them in one line, or returns pieces that lie inside them.
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  const auto proto = parse_model_proto({reinterpret_cast<const char*>(data), size});
  if (!proto) {
    TP_CHECK(proto.error().message.find('\n') == std::string::npos, "not one line: {}", proto.error().message);
    return 0;
  }
  size_t bytes = proto.value().facts.normalizer.size();
  for (const auto& piece : proto.value().pieces) {
    TP_CHECK(piece.type <= PieceType::kByte, "a type that cannot be");
    bytes += piece.text.size() + 2;  // with the key and the length of its field
  }
  TP_CHECK(bytes <= size, "{} bytes of text in a model of {}", bytes, size);
  const int32_t unknown = proto.value().facts.unknown;
  TP_CHECK(unknown == -1 || static_cast<size_t>(unknown) < proto.value().pieces.size(), "unknown is {}", unknown);
  return 0;
}
