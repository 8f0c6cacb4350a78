// Parses any bytes as a foreign config.json: refuses them in one line, or accepts a model whose tensors can be counted,
// and which survives being written and read again.
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "models/hf_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  const auto config = parse_hf_config({reinterpret_cast<const char*>(data), size}, "fuzz.json");
  if (!config) {
    TP_CHECK(config.error().message.find('\n') == std::string::npos, "not one line: {}", config.error().message);
    return 0;
  }
  const LlamaShape& shape = config.value().shape;
  int64_t bytes = 0;
  for (const auto& tensor : llama_tensors(shape)) {
    const auto of_tensor = tensor_bytes(Dtype::kF64, tensor.shape);
    TP_CHECK(of_tensor && *of_tensor > 0, "tensor {} cannot be counted", tensor.name);
    TP_CHECK(!__builtin_add_overflow(bytes, *of_tensor, &bytes), "the tensors cannot be counted");
  }
  TP_CHECK(shape.head_dim() % 2 == 0 && shape.head_dim() * shape.heads == shape.d, "heads do not divide");
  const auto again = parse_hf_config(hf_config_text(config.value()), "again.json");
  TP_CHECK(again && again.value() == config.value(), "reads back otherwise");
  return 0;
}
