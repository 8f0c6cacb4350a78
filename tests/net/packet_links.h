// One end of a boundary under test and a bare Link at its other end, so that a test can send what no PacketLink would.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "net/link_conformance.h"
#include "net/memory_link.h"
#include "net/packet_link.h"

namespace thinpipe {

inline constexpr uint64_t kEpoch = 5;
inline constexpr int64_t kStep = 10;
inline constexpr int64_t kBasisVersion = 3;
inline constexpr uint64_t kMostHeld = 2 * (2 * 4 + 1 + 6);  // per epoch, by the rules below

inline PacketRules test_rules() {
  return {.run = run_tag("a run"),
          .boundary = 2,
          .boundary_kind = 0,
          .pack = 5,
          .max_payload_bytes = 64,
          .microbatches = 4,
          .eval_microbatches = 6};
}

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

inline PacketHeader header_of(const PacketTag& tag) {
  const auto rules = test_rules();
  return {.run = rules.run,
          .tag = tag,
          .boundary = rules.boundary,
          .boundary_kind = rules.boundary_kind,
          .pack = rules.pack,
          .rows = 4,
          .cols = 6,
          .basis_version = kBasisVersion};
}

inline MessageBytes packet_of(const PacketTag& tag) { return encode_packet(header_of(tag), payload_of(tag)); }

class PacketLinkTest : public ::testing::Test {
 protected:
  PacketLinkTest() { connect(); }

  // At kEpoch, no step entered. Capacities above everything a test sends unless it reads on.
  void connect() {
    link.reset();
    auto [near, far] = make_memory_link(1000, 1000);
    peer = std::move(far);
    link = std::make_unique<PacketLink>(std::move(near), test_rules(), kEpoch);
  }

  void peer_sends(const PacketTag& tag) { EXPECT_TRUE(peer->send(packet_of(tag)).ok()); }

  // Until the link's thread has looked at all that the peer has sent: packets arrive in order, so one more is sent and
  // received, a backward packet of the step that the link is at.
  void await_arrivals(uint64_t epoch = kEpoch, int64_t step = kStep) {
    const PacketTag last{epoch, step, awaited++ % 4, PacketKind::kBackward};
    peer_sends(last);
    expect_received(last);
  }

  void expect_received(const PacketTag& tag) {
    const auto payload = link->receive(tag, kBasisVersion);
    ASSERT_TRUE(payload.ok()) << payload.error().message;
    EXPECT_EQ(payload.value(), payload_of(tag)) << to_string(tag);
  }

  // The link fails for this reason, and both ends know it.
  void expect_failure(std::string_view reason) {
    EXPECT_TRUE(fails_with(peer->receive(), reason));
    EXPECT_TRUE(fails_with(link->send(forward(kEpoch, kStep, 3), {}, 0, 0, 0), reason));
    EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 3), kBasisVersion), reason));
    EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 3), kBasisVersion), "boundary 2: "));
  }

  std::unique_ptr<Link> peer;
  std::unique_ptr<PacketLink> link;
  int64_t awaited = 0;
};

}  // namespace thinpipe
