// Parses any bytes as a token shard: refuses them in one line, or reads them to the last token.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/shards.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  const Fd file(::memfd_create("fuzz.bin", MFD_CLOEXEC));
  TP_CHECK(file && ::write(file.get(), data, size) == static_cast<ssize_t>(size), "no file in memory");
  const auto shard = TokenShard::open(fmt::format("/proc/self/fd/{}", file.get()));
  if (!shard) {
    TP_CHECK(shard.error().message.find('\n') == std::string::npos, "not one line: {}", shard.error().message);
    return 0;
  }
  const uint64_t bytes = kShardHeaderBytes + shard.value().size() * shard.value().token_bytes();
  TP_CHECK(bytes == size, "{} bytes accepted as {}", size, bytes);
  std::vector<int32_t> all(shard.value().size());
  TP_CHECK(shard.value().read(0, all).ok(), "cannot be read to its end");
  const bool small = shard.value().check_ids_below(4096).ok();
  for (const int32_t id : all) {
    if (small) TP_CHECK(id >= 0 && id < 4096, "check_ids_below missed {}", id);
  }
  return 0;
}
