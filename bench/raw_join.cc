#include "bench/raw_join.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace thinpipe {
namespace {

// RFC 9113, section 6.
enum FrameType : uint8_t { kData = 0, kHeaders = 1, kSettings = 4, kPing = 6, kWindowUpdate = 8 };
constexpr uint8_t kAck = 1, kEndHeaders = 4;
constexpr size_t kFrameHeader = 9, kMostData = 16384;
constexpr int64_t kFirstWindow = 65535;

std::string big_endian(uint64_t number, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(number >> (8 * i));
  return text;
}

uint32_t number_at(const std::string& text, size_t at, size_t bytes) {
  uint32_t number = 0;
  for (size_t i = 0; i < bytes; ++i) number = number << 8 | static_cast<uint8_t>(text[at + i]);
  return number;
}

std::string frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string text = big_endian(payload.size(), 3);
  text += static_cast<char>(type);
  text += static_cast<char>(flags);
  return text + big_endian(stream, 4) + payload;
}

// RFC 7541, 6.2.2: a literal header without indexing and without Huffman coding.
std::string header(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) + value;
}

std::string join_headers() {
  return header(":method", "POST") + header(":scheme", "https") +
         header(":path", "/thinpipe.control.Coordinator/Join") + header(":authority", "coordinator.thinpipe") +
         header("content-type", "application/grpc") + header("te", "trailers");
}

}  // namespace

struct RawJoin::Tls {
  ~Tls() {
    SSL_free(ssl);
    SSL_CTX_free(context);
  }
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL* ssl = nullptr;
};

RawJoin::RawJoin(int port, size_t calls, size_t bytes) : tls_(std::make_unique<Tls>()) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{5, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
  static constexpr unsigned char kProtocols[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(tls_->context, kProtocols, sizeof kProtocols);
  tls_->ssl = SSL_new(tls_->context);
  SSL_set_mode(tls_->ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_set_fd(tls_->ssl, socket_);
  if (SSL_connect(tls_->ssl) != 1) return;
  std::string first = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(kSettings, 0, 0, "");
  for (size_t i = 0; i < calls; ++i) {
    const auto stream = static_cast<uint32_t>(2 * i + 1);
    first += frame(kHeaders, kEndHeaders, stream, join_headers());
    first += frame(kData, 0, stream, std::string(1, '\0') + big_endian(bytes, 4));  // announces the message
    calls_[stream] = {bytes - 1, kFirstWindow - 5};
    window_ -= 5;
  }
  if (!send(first)) calls_.clear();
  ::fcntl(socket_, F_SETFL, O_NONBLOCK);
}

RawJoin::~RawJoin() {
  tls_.reset();
  ::close(socket_);
}

bool RawJoin::send(const std::string& frame) {
  written_ = SSL_write(tls_->ssl, frame.data(), static_cast<int>(frame.size()));
  return written_ == static_cast<int>(frame.size());
}

bool RawJoin::pump() { return !calls_.empty() && read_frames() && send_data(); }

bool RawJoin::read_frames() {
  std::array<char, kMostData> buffer{};
  while (true) {
    const int count = SSL_read(tls_->ssl, buffer.data(), buffer.size());
    if (count <= 0 && SSL_get_error(tls_->ssl, count) != SSL_ERROR_WANT_READ) return false;
    if (count <= 0) break;
    received_.append(buffer.data(), static_cast<size_t>(count));
  }
  while (received_.size() >= kFrameHeader) {
    const size_t size = number_at(received_, 0, 3);
    if (received_.size() < kFrameHeader + size) break;
    const auto type = static_cast<uint8_t>(received_[3]), flags = static_cast<uint8_t>(received_[4]);
    const uint32_t stream = number_at(received_, 5, 4);
    const auto payload = received_.substr(kFrameHeader, size);
    received_.erase(0, kFrameHeader + size);
    if (type == kSettings && (flags & kAck) == 0 && !send(frame(kSettings, kAck, 0, ""))) return false;
    if (type == kPing && (flags & kAck) == 0 && !send(frame(kPing, kAck, 0, payload))) return false;
    if (type != kWindowUpdate || size != 4) continue;
    const int64_t more = number_at(payload, 0, 4);
    if (stream == 0) window_ += more;
    if (const auto found = calls_.find(stream); found != calls_.end()) found->second.window += more;
  }
  return true;
}

bool RawJoin::send_data() {
  for (auto& [stream, call] : calls_) {
    while (call.left > 0 && call.window > 0 && window_ > 0) {
      const auto most = static_cast<size_t>(std::min(call.window, window_));
      const size_t size = std::min({call.left, most, kMostData});
      if (!send(frame(kData, 0, stream, std::string(size, 'x')))) {
        return SSL_get_error(tls_->ssl, written_) == SSL_ERROR_WANT_WRITE;
      }
      call.left -= size;
      call.window -= static_cast<int64_t>(size);
      window_ -= static_cast<int64_t>(size);
    }
  }
  return true;
}

}  // namespace thinpipe
