// Parses any bytes as the index of a sharded model: refuses them in one line, or accepts file names that cannot leave
// their folder, and which survive being written and read again.
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/result.h"
#include "models/hf_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  const auto index = parse_hf_index({reinterpret_cast<const char*>(data), size}, "fuzz.json");
  if (!index) {
    TP_CHECK(index.error().message.find('\n') == std::string::npos, "not one line: {}", index.error().message);
    return 0;
  }
  for (const auto& [tensor, file] : index.value()) {
    const auto path = std::filesystem::path("/folder") / file;
    TP_CHECK(path.lexically_normal().parent_path() == "/folder" && file.find('\0') == std::string::npos,
             "leaves the folder: {}", file);
  }
  const auto again = parse_hf_index(hf_index_text(index.value(), size), "again.json");
  TP_CHECK(again && again.value() == index.value(), "reads back otherwise");
  return 0;
}
