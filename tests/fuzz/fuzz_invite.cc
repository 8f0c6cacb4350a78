// Any text as an invite: it is refused in one line, or read, and what was read can be written and read again. The same
// bytes also as the inside of an invite whose checksum is right, which chance would not find.
#include <absl/strings/escaping.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/sha256.h"
#include "net/addresses.h"
#include "net/invite.h"

namespace {

using namespace thinpipe;

void check(const std::string& text) {
  const auto invite = parse_invite(text);
  if (!invite) {
    TP_CHECK(invite.error().message.find('\n') == std::string::npos, "not one line: {}", invite.error().message);
    return;
  }
  TP_CHECK(invite.value().addresses.size() <= kMaxInviteAddresses, "{} addresses", invite.value().addresses.size());
  for (const auto& address : invite.value().addresses) TP_CHECK(check_address(address).ok(), "address {}", address);
  TP_CHECK(invite.value().ca_pem.starts_with("-----BEGIN CERTIFICATE"), "no authority");
  TP_CHECK(parse_invite(to_text(invite.value())).take() == invite.value(), "reads back otherwise");
}

std::string sealed(const std::string& body) {
  const auto text = "thinpipe-v1-" + absl::WebSafeBase64Escape(body);
  return text + sha256_hex(text).substr(0, 12);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  check(sealed(bytes));
  if (const auto address = parse_host_port(bytes); address && address.value().port != 0) {
    TP_CHECK(parse_host_port(to_string(address.value())).take().host == address.value().host, "reads back otherwise");
  }
  (void)caller_network(bytes);
  return 0;
}
