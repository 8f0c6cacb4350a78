#include "net/packet.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <span>
#include <type_traits>

#include "base/sha256.h"

namespace thinpipe {
namespace {

constexpr std::array<uint8_t, 4> kMagic{'T', 'P', 'K', 'T'};
constexpr size_t kChecksumBytes = 4;  // the last ones

// Little-endian integers, one behind the other.
class Writer {
 public:
  explicit Writer(std::byte* to) : to_(to) {}

  template <class T>
  void put(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T); ++i) *to_++ = static_cast<std::byte>(static_cast<uint64_t>(bits) >> (8 * i));
  }

 private:
  std::byte* to_;
};

// Must not be asked for more than there is.
class Reader {
 public:
  explicit Reader(const std::byte* from) : from_(from) {}

  template <class T>
  T get() {
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) bits |= std::to_integer<uint64_t>(*from_++) << (8 * i);
    return static_cast<T>(bits);
  }

 private:
  const std::byte* from_;
};

// The trailer as it stands in the message, before anyone believes it.
struct RawHeader {
  std::array<uint8_t, 4> magic{};
  uint8_t version = 0;
  uint8_t kind = 0;
  uint64_t reserved = 0;
  PacketHeader header;  // its tag's kind is not set
};

RawHeader read_trailer(std::span<const std::byte> message) {
  Reader reader(message.data() + message.size() - kPacketHeaderBytes);
  RawHeader raw;
  for (auto& byte : raw.magic) byte = reader.get<uint8_t>();
  raw.version = reader.get<uint8_t>();
  raw.kind = reader.get<uint8_t>();
  raw.header.boundary_kind = reader.get<uint8_t>();
  raw.header.pack = reader.get<uint8_t>();
  for (auto& byte : raw.header.run) byte = reader.get<uint8_t>();
  raw.header.tag.epoch = reader.get<uint64_t>();
  raw.header.tag.step = reader.get<int64_t>();
  raw.header.tag.microbatch = reader.get<uint32_t>();
  raw.header.boundary = reader.get<uint32_t>();
  raw.header.basis_version = reader.get<int64_t>();
  raw.header.rows = reader.get<uint32_t>();
  raw.header.cols = reader.get<uint32_t>();
  raw.header.payload_bytes = reader.get<uint32_t>();
  raw.reserved = reader.get<uint64_t>();
  raw.header.checksum = reader.get<uint32_t>();
  return raw;
}

// Of all bytes before the checksum.
uint32_t checksum_of(std::span<const std::byte> message) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const unsigned char*>(message.data()), message.size() - kChecksumBytes));
}

bool fits_u32(int64_t value) { return value >= 0 && value <= std::numeric_limits<uint32_t>::max(); }

std::string hex_of(const RunTag& run) {
  std::string hex;
  for (const uint8_t byte : run) hex += fmt::format("{:02x}", byte);
  return hex;
}

// Whether these are the bytes that somebody sent, in the words of this version.
Status check_integrity(const RawHeader& raw, std::span<const std::byte> message) {
  const size_t payload_bytes = message.size() - kPacketHeaderBytes;
  if (raw.magic != kMagic) return Error{"a packet without 'TPKT' where its trailer begins, 80 bytes before its end"};
  if (raw.version != kPacketVersion) {
    return Error{
        fmt::format("a packet of protocol version {}; this build speaks version {}, and both ends need the same",
                    raw.version, kPacketVersion)};
  }
  if (raw.header.payload_bytes != payload_bytes) {
    return Error{fmt::format("a packet whose trailer tells of {} payload bytes but which has {}",
                             raw.header.payload_bytes, payload_bytes)};
  }
  if (const uint32_t checksum = checksum_of(message); raw.header.checksum != checksum) {
    return Error{fmt::format("a packet damaged on its way: its checksum is {:08x}, that of its bytes {:08x}",
                             raw.header.checksum, checksum)};
  }
  if (raw.reserved != 0) return Error{"a packet whose reserved bytes are not all 0, as they are in version 1"};
  return {};
}

// Whether it belongs here.
Status check_rules(const PacketHeader& header, const PacketRules& rules) {
  if (header.run != rules.run) {
    return Error{fmt::format("a packet of run {}; this is run {}", hex_of(header.run), hex_of(rules.run))};
  }
  if (header.boundary != rules.boundary) {
    return Error{fmt::format("a packet of boundary {}; this is boundary {}", header.boundary, rules.boundary)};
  }
  if (header.boundary_kind != rules.boundary_kind) {
    return Error{fmt::format("a packet of boundary kind {}; this boundary is of kind {}", header.boundary_kind,
                             rules.boundary_kind)};
  }
  if (header.pack != rules.pack) {
    return Error{fmt::format("a packet in pack {}; this boundary uses pack {}", header.pack, rules.pack)};
  }
  if (const auto problem = tag_problem(header.tag, rules); !problem.empty()) {
    return Error{"a packet with " + problem};
  }
  return {};
}

}  // namespace

std::string to_string(const PacketTag& tag) {
  constexpr std::array<std::string_view, 4> kNames{"forward", "backward", "end-of-step", "evaluation"};
  const auto kind = static_cast<size_t>(tag.kind);
  return fmt::format("the {} packet of epoch {}, step {}, microbatch {}",
                     kind < kNames.size() ? kNames[kind] : "unknown", tag.epoch, tag.step, tag.microbatch);
}

RunTag run_tag(std::string_view run_id) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  RunTag run;
  const bool is_tag = run_id.size() == 2 * run.size() && run_id.find_first_not_of(kDigits) == std::string_view::npos;
  const std::string hex = is_tag ? std::string(run_id) : sha256_hex(run_id);
  for (size_t i = 0; i < run.size(); ++i) {
    run[i] = static_cast<uint8_t>(kDigits.find(hex[2 * i]) * 16 + kDigits.find(hex[2 * i + 1]));
  }
  return run;
}

std::string tag_problem(const PacketTag& tag, const PacketRules& rules) {
  if (tag.kind > PacketKind::kEvalForward) {
    return fmt::format("kind {}; 0 (forward), 1 (backward), 2 (end of step) and 3 (evaluation) exist",
                       static_cast<unsigned>(tag.kind));
  }
  if (tag.step < 0) return fmt::format("step {}; steps count from 0", tag.step);
  const bool training = tag.kind == PacketKind::kForward || tag.kind == PacketKind::kBackward;
  const int64_t count = training                             ? rules.microbatches
                        : tag.kind == PacketKind::kEndOfStep ? 1
                                                             : rules.eval_microbatches;
  if (tag.microbatch < 0 || tag.microbatch >= count) {
    return fmt::format("microbatch {}; {} has {}, counted from 0", tag.microbatch,
                       training                             ? "a step"
                       : tag.kind == PacketKind::kEndOfStep ? "the end of a step"
                                                            : "an evaluation",
                       count);
  }
  return "";
}

std::vector<std::byte> encode_packet(const PacketHeader& header, std::vector<std::byte> payload) {
  const PacketTag& tag = header.tag;
  TP_CHECK(fits_u32(tag.microbatch) && fits_u32(header.boundary) &&
               payload.size() <= std::numeric_limits<uint32_t>::max() - kPacketHeaderBytes,
           "{} with {} bytes at boundary {} cannot be written down", to_string(tag), payload.size(), header.boundary);
  const size_t payload_bytes = payload.size();
  payload.reserve(payload_bytes + kPacketHeaderBytes);  // resize() alone might double it
  payload.resize(payload_bytes + kPacketHeaderBytes);
  Writer writer(payload.data() + payload_bytes);
  for (const uint8_t byte : kMagic) writer.put(byte);
  writer.put(kPacketVersion);
  writer.put(static_cast<uint8_t>(tag.kind));
  writer.put(header.boundary_kind);
  writer.put(header.pack);
  for (const uint8_t byte : header.run) writer.put(byte);
  writer.put(tag.epoch);
  writer.put(tag.step);
  writer.put(static_cast<uint32_t>(tag.microbatch));
  writer.put(static_cast<uint32_t>(header.boundary));
  writer.put(header.basis_version);
  writer.put(header.rows);
  writer.put(header.cols);
  writer.put(static_cast<uint32_t>(payload_bytes));
  writer.put(uint64_t{0});
  seal_packet(payload);
  return payload;
}

void seal_packet(std::vector<std::byte>& message) {
  TP_CHECK(message.size() >= kChecksumBytes, "{} bytes have no room for a checksum", message.size());
  Writer(message.data() + message.size() - kChecksumBytes).put(checksum_of(message));
}

Result<Packet> parse_packet(std::vector<std::byte> message, const PacketRules& rules) {
  if (message.size() < kPacketHeaderBytes) {
    return Error{fmt::format("a packet of {} bytes; its trailer alone has {}", message.size(), kPacketHeaderBytes)};
  }
  const size_t payload_bytes = message.size() - kPacketHeaderBytes;
  if (payload_bytes > rules.max_payload_bytes) {
    return Error{fmt::format("a packet with {} payload bytes; this boundary's largest has {}", payload_bytes,
                             rules.max_payload_bytes)};
  }
  RawHeader raw = read_trailer(message);
  TRY(check_integrity(raw, message));
  raw.header.tag.kind = static_cast<PacketKind>(raw.kind);  // any byte is a value of it; tag_problem() knows the four
  TRY(check_rules(raw.header, rules));
  message.resize(payload_bytes);
  return Packet{raw.header, std::move(message)};
}

}  // namespace thinpipe
