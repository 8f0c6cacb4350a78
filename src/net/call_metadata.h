// What a server reads from a call before it answers: the caller's metadata. Shared by the services of net/; inside
// net/ only.
#pragma once

#include <grpcpp/server_context.h>

#include <charconv>
#include <string>
#include <system_error>

#include "base/result.h"
#include "net/link_service.h"

namespace thinpipe {

// An error unless the key is there exactly once.
Result<std::string> metadata_text(const grpc::ServerContextBase& context, const char* key);

template <class Number>
Result<Number> metadata_number(const grpc::ServerContextBase& context, const char* key) {
  const auto text = metadata_text(context, key);
  if (!text) return text.error();
  Number number{};
  const char* end = text.value().data() + text.value().size();
  const auto [stopped, fault] = std::from_chars(text.value().data(), end, number);
  if (fault != std::errc{} || stopped != end) return Error{fmt::format("{} is '{}', not a number", key, text.value())};
  return number;
}

}  // namespace thinpipe
