// Any text as an invite: refused in one line, or an invite that is written as it was read, white space aside. The same
// bytes also as the inside of an invite whose checksum is right, which chance would not find.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/sha256.h"
#include "net/invite.h"

namespace {

using namespace thinpipe;

void check(const std::string& text) {
  const auto invite = parse_invite(text);
  if (!invite) {
    TP_CHECK(invite.error().message.find('\n') == std::string::npos, "not one line: {}", invite.error().message);
    return;
  }
  TP_CHECK(invite.value().addresses.size() <= 8, "{} addresses", invite.value().addresses.size());
  for (const auto& address : invite.value().addresses) TP_CHECK(check_address(address).ok(), "address {}", address);
  TP_CHECK(invite.value().ca_pem.starts_with("-----BEGIN CERTIFICATE"), "no authority");
  std::string dense;
  for (const char c : text) {
    if (std::string_view(" \t\r\n\v\f").find(c) == std::string_view::npos) dense += c;
  }
  TP_CHECK(to_text(invite.value()) == dense, "reads back otherwise");
}

std::string sealed(std::string body) {
  const auto hex = sha256_hex("thinpipe-v1-" + body);
  for (size_t i = 0; i < 6; ++i) body += static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text = "thinpipe-v1-";
  for (size_t bit = 0; bit < body.size() * 8; bit += 6) {
    const auto byte = [&](size_t at) { return at < body.size() ? static_cast<uint8_t>(body[at]) : 0U; };
    const auto two = byte(bit / 8) << 8 | byte(bit / 8 + 1);
    text += kLetters[two >> (10 - bit % 8) & 63];
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  check(sealed(bytes));
  (void)caller_network(bytes);
  return 0;
}
