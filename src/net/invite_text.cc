// The text of an invite (invite.h), written and read.
#include <arpa/inet.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/sha256.h"
#include "net/invite.h"
#include "net/openssl_handles.h"

namespace thinpipe {
namespace {

constexpr std::string_view kPrefix = "thinpipe-v1-";
constexpr std::string_view kAnyVersion = "thinpipe-v";
constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::string_view kSpaces = " \t\r\n\v\f";
constexpr size_t kMaxTextBytes = size_t{32} << 10;  // white space included
constexpr size_t kMaxRunBytes = 64;
constexpr size_t kMaxAddresses = 8;
constexpr size_t kMaxAddressBytes = 255;
constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 64;
constexpr size_t kMaxDerBytes = 4096;
constexpr size_t kInviteChecksumBytes = 6;

Error not_whole() { return Error{"this invite is not whole: copy all of it"}; }

std::string to_base64url(std::string_view bytes) {
  std::string text;
  uint32_t held = 0;
  int bits = 0;
  for (const char byte : bytes) {
    held = held << 8 | static_cast<uint8_t>(byte);
    for (bits += 8; bits >= 6; bits -= 6) text += kAlphabet[held >> (bits - 6) & 63];
  }
  if (bits > 0) text += kAlphabet[held << (6 - bits) & 63];
  return text;
}

// Nothing but what to_base64url() writes: bits that belong to no byte must be zero.
Result<std::string> from_base64url(std::string_view text) {
  std::string bytes;
  uint32_t held = 0;
  int bits = 0;
  for (const char letter : text) {
    const auto value = kAlphabet.find(letter);
    if (value == std::string_view::npos) return not_whole();
    held = (held << 6 | static_cast<uint32_t>(value)) & 0xffff;
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits & 255);
  }
  if (bits >= 6 || (held & ((1U << bits) - 1)) != 0) return not_whole();
  return bytes;
}

std::string checksum(std::string_view body) {
  Sha256 hash;
  hash.update(kPrefix);
  hash.update(body);
  const auto hex = hash.hex();
  std::string bytes;
  for (size_t i = 0; i < kInviteChecksumBytes; ++i) {
    int value = 0;
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, value, 16);
    bytes += static_cast<char>(value);
  }
  return bytes;
}

Result<std::string> der_of(const std::string& pem) {
  const auto certificate = parse_certificate(pem, "the invite's authority");
  if (!certificate) return certificate.error();
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate.value().get(), &der);
  if (size < 0) return Error{fmt::format("the invite's authority cannot be written: {}", openssl_reason())};
  std::string bytes(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return bytes;
}

// Only a certificate that is written again exactly as it is here.
Result<std::string> pem_of(const std::string& der) {
  const auto* at = reinterpret_cast<const unsigned char*>(der.data());
  const CertificateHandle certificate(d2i_X509(nullptr, &at, static_cast<long>(der.size())));
  if (!certificate) return Error{fmt::format("the invite's authority is not a certificate: {}", openssl_reason())};
  auto pem = certificate_text(*certificate);
  const auto again = der_of(pem);
  if (!again || again.value() != der) return Error{"the invite's authority is not one certificate in its usual form"};
  return pem;
}

Status check_invite(const Invite& invite, size_t der_bytes) {
  if (invite.run.empty() || invite.run.size() > kMaxRunBytes) {
    return Error{
        fmt::format("an invite's run has a name of 1 to {} bytes, not of {}", kMaxRunBytes, invite.run.size())};
  }
  if (invite.addresses.empty() || invite.addresses.size() > kMaxAddresses) {
    return Error{fmt::format("an invite holds 1 to {} addresses, not {}", kMaxAddresses, invite.addresses.size())};
  }
  for (const auto& address : invite.addresses) {
    if (auto fine = check_address(address); !fine) return fine;
  }
  if (invite.token.size() < kMinTokenBytes || invite.token.size() > kMaxTokenBytes) {
    return Error{fmt::format("an invite's token has {} to {} bytes, not {}", kMinTokenBytes, kMaxTokenBytes,
                             invite.token.size())};
  }
  if (der_bytes > kMaxDerBytes) {
    return Error{fmt::format("an invite's authority has at most {} bytes, not {}", kMaxDerBytes, der_bytes)};
  }
  return {};
}

// Takes fields off the front; after the first that is not there all are empty.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : left_(bytes) {}

  size_t number(size_t width) {
    size_t value = 0;
    for (const char byte : take(width)) value = value << 8 | static_cast<uint8_t>(byte);
    return value;
  }
  std::string_view take(size_t size) {
    if (size > left_.size()) {
      short_ = true;
      left_ = {};
    }
    const auto taken = left_.substr(0, short_ ? 0 : size);
    left_.remove_prefix(taken.size());
    return taken;
  }
  std::string text() { return std::string(take(number(1))); }
  bool at_end() const { return !short_ && left_.empty(); }

 private:
  std::string_view left_;
  bool short_ = false;
};

Result<Invite> read_body(std::string_view body) {
  Fields fields(body);
  Invite invite;
  invite.run = fields.text();
  const auto count = fields.number(1);
  if (count > kMaxAddresses) {
    return Error{fmt::format("an invite holds 1 to {} addresses, not {}", kMaxAddresses, count)};
  }
  for (size_t i = 0; i < count; ++i) invite.addresses.push_back(fields.text());
  invite.token = fields.text();
  const std::string der(fields.take(fields.number(2)));
  if (auto fine = check_invite(invite, der.size()); !fine) return fine.error();
  if (!fields.at_end()) return Error{"this invite's parts have other lengths than it says: ask for a new one"};
  auto pem = pem_of(der);
  if (!pem) return pem.error();
  invite.ca_pem = std::move(pem.value());
  return invite;
}

bool is_ipv4(const std::string& host) {
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

bool is_host_name(std::string_view host) {
  if (host.ends_with('.')) host.remove_suffix(1);
  if (host.empty()) return false;
  while (true) {
    const auto label = host.substr(0, host.find('.'));
    const bool fine =
        !label.empty() && label.size() <= 63 && label.front() != '-' && label.back() != '-' &&
        std::all_of(label.begin(), label.end(), [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
        });
    if (!fine) return false;
    if (label.size() == host.size()) break;
    host.remove_prefix(label.size() + 1);
  }
  return true;
}

bool is_host(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) {
    in6_addr address{};
    return ::inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), &address) == 1;
  }
  // Of digits and dots alone: a number that must be right.
  if (host.find_first_not_of("0123456789.") == std::string_view::npos) return is_ipv4(std::string(host));
  return is_host_name(host);
}

}  // namespace

Status check_address(std::string_view address) {
  // Whatever it holds, what is said about it stays one short line.
  std::string shown(address.substr(0, 64));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  const Error wrong{fmt::format("'{}' is not an address: host:port, 192.0.2.7:port or [2001:db8::7]:port is", shown)};
  if (address.size() > kMaxAddressBytes || address.find('\0') != std::string_view::npos) return wrong;
  const auto colon = address.rfind(':');
  if (colon == std::string_view::npos || !is_host(address.substr(0, colon))) return wrong;
  const auto port_text = address.substr(colon + 1);
  uint16_t port = 0;
  const char* end = port_text.data() + port_text.size();
  const auto [stopped, fault] = std::from_chars(port_text.data(), end, port);
  if (fault != std::errc{} || stopped != end || port == 0) {
    return Error{fmt::format("'{}' is not an address: its port is not a number from 1 to 65535", shown)};
  }
  return {};
}

std::string to_text(const Invite& invite) {
  const auto der = der_of(invite.ca_pem);
  if (!der) throw UserError(der.error().message);
  check_invite(invite, der.value().size()).take();
  const auto text = [](const std::string& field) { return static_cast<char>(field.size()) + field; };
  std::string body = text(invite.run);
  body += static_cast<char>(invite.addresses.size());
  for (const auto& address : invite.addresses) body += text(address);
  body += text(invite.token);
  body += static_cast<char>(der.value().size() >> 8);
  body += static_cast<char>(der.value().size() & 255);
  body += der.value();
  return std::string(kPrefix) + to_base64url(body + checksum(body));
}

Result<Invite> parse_invite(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return Error{fmt::format("this is not an invite: it has {} bytes, and an invite has fewer than {}", text.size(),
                             kMaxTextBytes)};
  }
  std::string dense;
  std::copy_if(text.begin(), text.end(), std::back_inserter(dense),
               [](char c) { return kSpaces.find(c) == std::string_view::npos; });
  if (!dense.empty() && kPrefix.starts_with(dense)) return not_whole();
  if (!dense.starts_with(kPrefix)) {
    const auto version = std::string_view(dense).substr(std::min(dense.size(), kAnyVersion.size()));
    const auto digits = std::min(version.find_first_not_of("0123456789"), version.size());
    if (dense.starts_with(kAnyVersion) && digits > 0 && digits < 6 && version.substr(digits).starts_with('-')) {
      return Error{
          fmt::format("this invite is of version {}, and this program reads version 1: both sides need the "
                      "same thinpipe",
                      version.substr(0, digits))};
    }
    return Error{fmt::format("this is not an invite: an invite begins with {}", kPrefix)};
  }
  const auto bytes = from_base64url(std::string_view(dense).substr(kPrefix.size()));
  if (!bytes) return bytes.error();
  std::string_view body = bytes.value();
  if (body.size() < kInviteChecksumBytes) return not_whole();
  const auto sum = body.substr(body.size() - kInviteChecksumBytes);
  body.remove_suffix(kInviteChecksumBytes);
  if (sum != checksum(body)) return not_whole();
  return read_body(body);
}

}  // namespace thinpipe
