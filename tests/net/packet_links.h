// Shared by the tests of links: payloads that a receiver can predict, numbered packets, and one end of a boundary with
// a bare Link at its other end, so that a test can send what no PacketLink would.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "net/memory_link.h"
#include "net/packet_link.h"
#include "support/draw.h"

namespace thinpipe {

using MessageBytes = std::vector<std::byte>;

inline constexpr uint64_t kEpoch = 5;
inline constexpr int64_t kStep = 10;
inline constexpr int64_t kBasisVersion = 3;

// Random bytes that depend on (seed, number) alone, so that a receiver knows what must arrive.
inline MessageBytes test_message(uint64_t seed, uint64_t number, size_t bytes) {
  const CounterRng rng(seed, number);
  MessageBytes message(bytes);
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = rng.bits64(at / 8);
    std::memcpy(message.data() + at, &word, std::min<size_t>(8, bytes - at));
  }
  return message;
}

// Of varying size, sometimes empty.
inline MessageBytes small_message(uint64_t seed, uint64_t number) {
  return test_message(seed, number, test::below(CounterRng(seed, "size"), 200, number));
}

inline MessageBytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline ::testing::AssertionResult holds(const Error& error, std::string_view reason) {
  if (error.message.find(reason) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "the error '" << error.message << "' does not hold '" << reason << "'";
}

inline ::testing::AssertionResult fails_with(const Status& status, std::string_view reason) {
  if (status.ok()) return ::testing::AssertionFailure() << "sent on a closed link";
  return holds(status.error(), reason);
}

inline ::testing::AssertionResult fails_with(const Result<std::string>& received, std::string_view reason) {
  if (received.ok()) return ::testing::AssertionFailure() << "received " << received.value().size() << " bytes";
  return holds(received.error(), reason);
}

// ---- numbered packets: of an evaluation, which may have any number of them ----

inline PacketRules numbered_rules() {
  return {.boundary = 0, .microbatches = 4, .eval_microbatches = int64_t{1} << 40};
}

inline PacketTag numbered(uint64_t number) {
  return {kEpoch, kStep, static_cast<int64_t>(number), PacketKind::kEvalForward};
}

// Sends small_message(seed, 0..count-1); returns how many were accepted before the link closed. `so_far` is the running
// count, for other threads.
inline uint64_t send_many(PacketLink& link, uint64_t seed, uint64_t count, std::atomic<uint64_t>* so_far = nullptr) {
  for (uint64_t number = 0; number < count; ++number) {
    if (!link.send(numbered(number), small_message(seed, number), 0)) return number;
    if (so_far != nullptr) ++*so_far;
  }
  return count;
}

// Receives up to count packets and checks that send_many sent them; returns how many came before the error.
inline uint64_t receive_many(PacketLink& link, uint64_t seed, uint64_t count, std::atomic<uint64_t>* so_far = nullptr) {
  for (uint64_t number = 0; number < count; ++number) {
    const auto message = link.receive(numbered(number), 0);
    if (!message) return number;
    if (bytes_of(message.value()) != small_message(seed, number)) {
      ADD_FAILURE() << "message " << number << " is not what was sent";
      link.close("a message was not what was sent");
      return number;
    }
    if (so_far != nullptr) ++*so_far;
  }
  return count;
}

// ---- one end of a boundary ----

inline PacketRules test_rules() { return {.boundary = 2, .microbatches = 4, .eval_microbatches = 6}; }
inline constexpr uint64_t kMostHeld = 2 * (2 * 4 + 1) + PacketLink::kEvaluationAhead;  // per epoch, by these rules

inline PacketTag forward(uint64_t epoch, int64_t step, int64_t microbatch) {
  return {epoch, step, microbatch, PacketKind::kForward};
}

// Every tag of a step, in an order in which a stage might send them.
inline std::vector<PacketTag> tags_of(uint64_t epoch, int64_t step) {
  std::vector<PacketTag> tags;
  for (int64_t microbatch = 0; microbatch < 6; ++microbatch) {
    tags.push_back({epoch, step, microbatch, PacketKind::kEvalForward});
  }
  for (int64_t microbatch = 0; microbatch < 4; ++microbatch) {
    tags.push_back({epoch, step, microbatch, PacketKind::kForward});
    tags.push_back({epoch, step, microbatch, PacketKind::kBackward});
  }
  tags.push_back({epoch, step, 0, PacketKind::kEndOfStep});
  return tags;
}

// Different for every tag.
inline MessageBytes payload_of(const PacketTag& tag) {
  const auto number = static_cast<uint64_t>(tag.step) * 64 + static_cast<uint64_t>(tag.microbatch) * 4;
  return test_message(tag.epoch, number + static_cast<uint64_t>(tag.kind), 24);
}

inline wire::Frame frame_of(const PacketTag& tag) { return packet_frame(tag, payload_of(tag), kBasisVersion); }

// Reads up to last_word.
inline ::testing::AssertionResult closed_with(Link& link, std::string_view reason) {
  wire::Frame frame;
  while (link.read(frame)) {
    if (frame.has_last_word()) return holds({frame.last_word()}, reason);
  }
  return ::testing::AssertionFailure() << "there was no last word";
}

class PacketLinkTest : public ::testing::Test {
 protected:
  PacketLinkTest() { connect(); }

  // At kEpoch, no step entered.
  void connect() {
    peer.reset();  // destroying a link waits for the other end
    link.reset();
    auto [near, far] = make_memory_link();
    peer = std::move(far);
    link = std::make_unique<PacketLink>(std::move(near), test_rules(), kEpoch);
  }
  ~PacketLinkTest() override { peer.reset(); }

  void peer_sends(const PacketTag& tag) { EXPECT_TRUE(peer->write(frame_of(tag))); }
  void peer_closes(std::string_view reason) {
    EXPECT_TRUE(peer->write(last_word_frame(reason)));
    peer->end_writing();
  }

  // Waits until the link's thread has seen all that the peer has sent. Packets arrive in order, so this sends and
  // receives one more: a backward packet of the link's current step.
  void await_arrivals(uint64_t epoch = kEpoch, int64_t step = kStep) {
    const PacketTag last{epoch, step, awaited++ % 4, PacketKind::kBackward};
    peer_sends(last);
    expect_received(last);
  }

  void expect_received(const PacketTag& tag) {
    const auto payload = link->receive(tag, kBasisVersion);
    ASSERT_TRUE(payload.ok()) << payload.error().message;
    EXPECT_EQ(bytes_of(payload.value()), payload_of(tag)) << to_string(tag);
  }

  // The link fails for this reason, and both ends know it.
  void expect_failure(std::string_view reason) {
    EXPECT_TRUE(closed_with(*peer, reason));
    EXPECT_TRUE(fails_with(link->send(forward(kEpoch, kStep, 3), {}, 0), reason));
    EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 3), kBasisVersion), reason));
    EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 3), kBasisVersion), "boundary 2: "));
  }

  std::unique_ptr<Link> peer;
  std::unique_ptr<PacketLink> link;
  int64_t awaited = 0;
};

}  // namespace thinpipe
