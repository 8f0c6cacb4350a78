// Any bytes at all as a token shard: refused, or readable to the last token.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/token_shard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto parsed = thinpipe::TokenShardView::parse(bytes, "fuzz.bin");
  if (!parsed) return 0;
  const auto& shard = parsed.value();
  std::vector<int32_t> all(shard.size());
  shard.read(0, all);
  for (size_t i = 0; i < all.size(); ++i) {
    TP_CHECK(static_cast<uint32_t>(all[i]) == shard.token(i), "token {} reads in two ways", i);
  }
  const bool small = shard.check_ids_below(4096).ok();
  for (const int32_t id : all) {
    if (small) TP_CHECK(id >= 0 && id < 4096, "check_ids_below missed {}", id);
  }
  return 0;
}
