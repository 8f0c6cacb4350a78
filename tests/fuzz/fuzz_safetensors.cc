// Parses any bytes as a safetensors file: refuses them with a message, or accepts a file with all tensors inside it.
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "store/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  const auto file = SafetensorsFile::parse({reinterpret_cast<const char*>(data), size}, "fuzz.safetensors");
  if (!file) {
    TP_CHECK(file.error().message.find('\n') == std::string::npos, "not one line: {}", file.error().message);
    return 0;
  }
  unsigned touched = 0;
  size_t total = 0;
  for (const auto& tensor : file.value().tensors()) {
    TP_CHECK(tensor_bytes(tensor.dtype, tensor.shape) == static_cast<int64_t>(tensor.bytes.size()), "bytes do not fit");
    TP_CHECK(file.value().find(tensor.name) == &tensor, "a name does not find its tensor");
    for (const std::byte byte : tensor.bytes) touched += std::to_integer<unsigned>(byte);
    total += tensor.bytes.size();
  }
  TP_CHECK(total <= size, "{} bytes of tensors in a file of {}", total, size);
  [[maybe_unused]] volatile unsigned keeps_the_reads = touched;
  return 0;
}
