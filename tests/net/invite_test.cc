#include "net/invite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/sha256.h"
#include "net/certificate_maker.h"
#include "proto/invite.pb.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

const WallTime kNow = WallTime(seconds(1'800'000'000));  // 2027-01-15 08:00:00
const std::string kNotWhole = "this invite is cut off or mistyped: copy the whole line";

const std::string& authority() {
  static const std::string pem =
      test::make_certificate({.common_name = "thinpipe run r", .constraints = "critical,CA:TRUE,pathlen:0"}).pem;
  return pem;
}

Invite some_invite() {
  return {"a run", {"run.example.org:7400", "192.0.2.7:7400", "[2001:db8::7]:7400"}, authority(), new_token()};
}

std::string refusal(const Result<Invite>& invite) { return invite ? "" : invite.error().message; }
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Encodes any bytes as an invite with a right checksum, independently of to_text().
std::string text_around(const std::string& body) {
  std::string padded((body.size() + 2) / 3 * 4 + 1, '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(padded.data()), reinterpret_cast<const unsigned char*>(body.data()),
                  static_cast<int>(body.size()));
  std::string text = "thinpipe-v1-";
  for (const char c : padded) {
    if (c != '=' && c != '\0') text += c == '+' ? '-' : c == '/' ? '_' : c;
  }
  return text + sha256_hex(text).substr(0, 12);
}

wire::Invite message_of(const Invite& invite) {
  wire::Invite message;
  message.set_run(invite.run);
  for (const auto& address : invite.addresses) message.add_addresses(address);
  message.set_token(invite.token);
  message.set_authority_der(test::der_text(invite.ca_pem));
  return message;
}

TEST(Invite, IsReadAsItWasWritten) {
  const auto invite = some_invite();
  const auto text = to_text(invite);
  EXPECT_EQ(text, text_around(message_of(invite).SerializeAsString()));
  EXPECT_EQ(parse_invite(text).take(), invite);
  EXPECT_LT(text.size(), 900U);
  EXPECT_EQ(text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), text.npos);
  // Every length of base64's last group.
  for (size_t token = 16; token <= 64; ++token) {
    auto other = invite;
    other.token.assign(token, '\xff');
    EXPECT_EQ(parse_invite(to_text(other)).take(), other);
  }
}

TEST(Invite, SurvivesWhatMailProgramsDoToIt) {
  const auto invite = some_invite();
  const auto text = to_text(invite);
  for (const size_t width : {1U, 7U, 64U, 76U}) {
    std::string broken = " \t";
    for (size_t at = 0; at < text.size(); at += width) broken += text.substr(at, width) + "\r\n  ";
    EXPECT_EQ(parse_invite(broken).take(), invite) << width;
  }
}

TEST(Invite, WithMissingCharacters_IsReportedAsIncomplete) {
  const auto text = to_text(some_invite());
  for (size_t size = 1; size < text.size(); ++size) EXPECT_EQ(refusal(parse_invite(text.substr(0, size))), kNotWhole);
  for (size_t at = 12; at < text.size(); ++at) {
    EXPECT_EQ(refusal(parse_invite(text.substr(0, at) + text.substr(at + 1))), kNotWhole) << at;
  }
}

TEST(Invite, MistypedAnywhereIsRefused) {
  const auto text = to_text(some_invite());
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char letter : {'A', 'b', '-', '+', '=', '.', '\0', '\x80'}) {
      auto typed = text;
      typed[at] = letter;
      if (typed == text) continue;
      const auto why = refusal(parse_invite(typed));
      EXPECT_NE(why, "") << at;
      EXPECT_FALSE(holds(why, "\n"));
      EXPECT_TRUE(at < 12 || why == kNotWhole) << why;
    }
    if (at + 1 < text.size() && text[at] != text[at + 1]) {
      auto swapped = text;
      std::swap(swapped[at], swapped[at + 1]);
      EXPECT_FALSE(parse_invite(swapped).ok()) << at;
    }
  }
  EXPECT_EQ(refusal(parse_invite(text + "A")), kNotWhole);
  EXPECT_EQ(refusal(parse_invite(text + text)), kNotWhole);
}

TEST(Invite, OtherText_IsReportedAsNotAnInvite) {
  for (const std::string text : {"", "  \n", "hello", "https://run.example.org"}) {
    EXPECT_EQ(refusal(parse_invite(text)), "this is not an invite: an invite begins with thinpipe-v1-") << text;
  }
  EXPECT_EQ(refusal(parse_invite("thinpipe")), kNotWhole);
  EXPECT_TRUE(holds(refusal(parse_invite("thinpipe-v2-AAAA")), "both sides need the same thinpipe"));
  EXPECT_TRUE(holds(refusal(parse_invite(std::string(40'000, 'A'))), "this is not an invite: it has 40000 bytes"));
}

TEST(Invite, HostileTextWithARightChecksumIsRefused) {
  const auto good = message_of(some_invite());
  const auto refused = [](const wire::Invite& message) {
    return refusal(parse_invite(text_around(message.SerializeAsString())));
  };
  EXPECT_EQ(refused(good), "");
  auto invite = good;
  invite.clear_run();
  EXPECT_TRUE(holds(refused(invite), "1 to 64 bytes, not 0")) << refused(invite);
  invite.set_run(std::string(65, 'r'));
  EXPECT_TRUE(holds(refused(invite), "1 to 64 bytes, not 65")) << refused(invite);
  invite = good;
  invite.clear_addresses();
  EXPECT_TRUE(holds(refused(invite), "1 to 8 addresses, not 0")) << refused(invite);
  for (int i = 0; i < 8; ++i) {
    invite.add_addresses(std::string(61, 'a') + "." + std::string(61, 'a') + "." + std::string(61, 'a') + "." +
                         std::string(60, 'a') + ".c:65535");
  }
  EXPECT_EQ(refused(invite), "");  // the largest allowed
  invite.add_addresses("a:1");
  EXPECT_TRUE(holds(refused(invite), "1 to 8 addresses, not 9")) << refused(invite);
  invite = good;
  invite.set_addresses(0, "a b:1");
  EXPECT_TRUE(holds(refused(invite), "'a b:1' is not an address")) << refused(invite);
  invite = good;
  invite.set_token(std::string(15, 't'));
  EXPECT_TRUE(holds(refused(invite), "16 to 64 bytes, not 15")) << refused(invite);
  invite.set_token(std::string(65, 't'));
  EXPECT_TRUE(holds(refused(invite), "16 to 64 bytes, not 65")) << refused(invite);
  invite = good;
  invite.set_authority_der(std::string(4097, 'd'));
  EXPECT_TRUE(holds(refused(invite), "at most 4096 bytes, not 4097")) << refused(invite);
  invite.set_authority_der("dddd");
  EXPECT_TRUE(holds(refused(invite), "is not a certificate")) << refused(invite);
  invite.set_authority_der(good.authority_der() + "x");
  EXPECT_TRUE(holds(refused(invite), "not one certificate")) << refused(invite);

  const auto body = good.SerializeAsString();
  for (size_t size = 0; size < body.size(); ++size) EXPECT_FALSE(parse_invite(text_around(body.substr(0, size))).ok());
  EXPECT_TRUE(holds(refusal(parse_invite(text_around(body + "x"))), "holds something else"));
  const std::string no_base64 = "thinpipe-v1-A";
  EXPECT_TRUE(holds(refusal(parse_invite(no_base64 + sha256_hex(no_base64).substr(0, 12))), "holds something else"));
}

TEST(Invite, ToText_OfAnUnreadableInvite_Throws) {
  auto invite = some_invite();
  invite.addresses = {"no port"};
  EXPECT_THROW(to_text(invite), UserError);
  invite = some_invite();
  invite.token = "short";
  EXPECT_THROW(to_text(invite), UserError);
  invite = some_invite();
  invite.ca_pem = "x";
  EXPECT_THROW(to_text(invite), UserError);
}

TEST(Tokens, AreDifferentEachTime) {
  std::set<std::string> tokens;
  for (int i = 0; i < 100; ++i) tokens.insert(new_token());
  EXPECT_EQ(tokens.size(), 100U);
  EXPECT_EQ(tokens.begin()->size(), 24U);
}

TEST(InviteRecord, NotUsable_SaysWhy) {
  const InviteRecord good{.id = "i7", .token_sha256 = "", .expires = kNow + seconds(1), .uses_left = 1};
  EXPECT_TRUE(may_use(good, kNow).ok());
  EXPECT_EQ(may_use(good, kNow + seconds(1)).error().message,
            "invite i7 expired at 2027-01-15 08:00:01 UTC: ask for a new one");
  auto used_up = good;
  used_up.uses_left = 0;
  EXPECT_EQ(may_use(used_up, kNow).error().message, "invite i7 is used up: ask for a new one");
  auto revoked = used_up;
  revoked.revoked = true;
  EXPECT_EQ(may_use(revoked, kNow).error().message, "invite i7 was revoked: ask for a new one");
}

TEST(JoinLimiter, AdmitsABurstThenALimitedRate) {
  JoinLimiter limiter({.burst = 100, .per_minute = 100, .address_burst = 3, .address_per_minute = 6});
  const std::string caller = "ipv4:192.0.2.7:";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.admit(caller + std::to_string(i + 1), kNow).ok());
  EXPECT_EQ(limiter.admit(caller + "9", kNow).error().message, "too many tries to join from 192.0.2.7: wait 10 s");
  EXPECT_EQ(limiter.admit(caller + "9", kNow + milliseconds(9'500)).error().message,
            "too many tries to join from 192.0.2.7: wait 1 s");
  EXPECT_TRUE(limiter.admit("ipv4:192.0.2.8:1", kNow).ok());  // another caller
  EXPECT_TRUE(limiter.admit(caller + "9", kNow + seconds(11)).ok());
  EXPECT_FALSE(limiter.admit(caller + "9", kNow + seconds(11)).ok());
  // After an hour at most the burst.
  int admitted = 0;
  for (int i = 0; i < 10; ++i) admitted += limiter.admit(caller + "9", kNow + minutes(60)).ok() ? 1 : 0;
  EXPECT_EQ(admitted, 3);
}

TEST(JoinLimiter, CountsAWholeIpv6NetworkAsOne) {
  JoinLimiter limiter({.address_burst = 2, .address_per_minute = 1});
  int admitted = 0;
  for (int i = 1; i < 50; ++i) {
    admitted += limiter.admit(fmt::format("ipv6:%5B2001:db8::{:x}%5D:1", i), kNow).ok() ? 1 : 0;
  }
  EXPECT_EQ(admitted, 2);
  EXPECT_TRUE(limiter.admit("ipv6:%5B2001:db8:0:1::1%5D:1", kNow).ok());
}

TEST(JoinLimiter, TotalLimit_DoesNotCountRefusedCallers) {
  JoinLimiter limiter({.burst = 5, .per_minute = 60, .address_burst = 2, .address_per_minute = 1});
  for (int i = 0; i < 100; ++i) (void)limiter.admit("192.0.2.1:1", kNow);  // two of these count
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.admit(fmt::format("192.0.2.{}:1", 10 + i), kNow).ok()) << i;
  EXPECT_EQ(limiter.admit("192.0.2.20:1", kNow).error().message, "too many are trying to join: wait 1 s");
  EXPECT_EQ(limiter.remembered(), 4U);  // refused ones are not
  EXPECT_TRUE(limiter.admit("192.0.2.20:1", kNow + seconds(1)).ok());
  EXPECT_FALSE(limiter.admit("192.0.2.21:1", kNow + seconds(1)).ok());
}

TEST(JoinLimiter, RemembersABoundedNumberOfCallers) {
  JoinLimiter limiter(
      {.burst = 1'000'000, .per_minute = 1, .address_burst = 2, .address_per_minute = 1, .max_addresses = 50});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(limiter.admit("192.0.2.1:1", kNow).ok());
  for (int i = 0; i < 5'000; ++i) {
    EXPECT_TRUE(limiter.admit(fmt::format("10.0.{}.{}:1", i / 250, i % 250), kNow).ok());
    EXPECT_LE(limiter.remembered(), 50U);
  }
  EXPECT_FALSE(limiter.admit("192.0.2.1:1", kNow).ok());  // the busiest is not forgotten
  EXPECT_TRUE(limiter.admit("192.0.2.2:1", kNow + minutes(5)).ok());
  EXPECT_EQ(limiter.remembered(), 1U);  // those that need not wait are
}

TEST(JoinLimiter, ClockSetBack_StillLimitsTheRate) {
  JoinLimiter limiter({.burst = 100, .per_minute = 60, .address_burst = 1, .address_per_minute = 60});
  EXPECT_TRUE(limiter.admit("192.0.2.1:1", kNow).ok());
  EXPECT_FALSE(limiter.admit("192.0.2.1:1", kNow - minutes(600)).ok());
  EXPECT_TRUE(limiter.admit("192.0.2.1:1", kNow - minutes(600) + seconds(1)).ok());
}

}  // namespace
}  // namespace thinpipe
