#include "net/call_metadata.h"

namespace thinpipe {

Result<std::string> metadata_text(const grpc::ServerContextBase& context, const char* key) {
  const auto& metadata = context.client_metadata();
  if (metadata.count(key) != 1) return Error{fmt::format("the stream's metadata holds no {}, or several", key)};
  const auto value = metadata.find(key)->second;
  return std::string(value.data(), value.size());
}

}  // namespace thinpipe
