#include "net/invite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/sha256.h"
#include "net/certificate_maker.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

const WallTime kNow = WallTime(seconds(1'800'000'000));  // 2027-01-15 08:00:00
const std::string kNotWhole = "this invite is not whole: copy all of it";

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

// The text around any bytes, with a checksum that is right.
std::string text_around(const std::string& body) {
  const auto hex = sha256_hex("thinpipe-v1-" + body);
  std::string bytes = body;
  for (size_t i = 0; i < 6; ++i) bytes += static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  std::string padded((bytes.size() + 2) / 3 * 4 + 1, '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(padded.data()), reinterpret_cast<const unsigned char*>(bytes.data()),
                  static_cast<int>(bytes.size()));
  std::string text;
  for (const char c : padded) {
    if (c != '=' && c != '\0') text += c == '+' ? '-' : c == '/' ? '_' : c;
  }
  return "thinpipe-v1-" + text;
}

std::string body_of(const Invite& invite) {
  const auto der = test::der_text(invite.ca_pem);
  std::string body = static_cast<char>(invite.run.size()) + invite.run + static_cast<char>(invite.addresses.size());
  for (const auto& address : invite.addresses) body += static_cast<char>(address.size()) + address;
  body += static_cast<char>(invite.token.size()) + invite.token;
  return body + static_cast<char>(der.size() >> 8) + static_cast<char>(der.size() & 255) + der;
}

TEST(Invite, IsReadAsItWasWritten) {
  const auto invite = some_invite();
  const auto text = to_text(invite);
  EXPECT_EQ(text, text_around(body_of(invite)));  // the format, by other means
  EXPECT_EQ(parse_invite(text).take(), invite);
  EXPECT_LT(text.size(), 900U);
  // Every length of the last group.
  for (size_t token = 16; token <= 64; ++token) {
    auto other = invite;
    other.token.assign(token, '\xff');
    const auto other_text = to_text(other);
    EXPECT_EQ(parse_invite(other_text).take(), other);
    // Of the last letter's bits some belong to no byte; they may not be just anything.
    for (const char letter : {'A', 'B', 'C', 'E', 'I', 'Q', 'g', '_'}) {
      EXPECT_EQ(parse_invite(other_text.substr(0, other_text.size() - 1) + letter).ok(), letter == other_text.back());
    }
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

TEST(Invite, CutOffAnywhereIsToldToBeNotWhole) {
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

TEST(Invite, OfAnotherKindIsToldApart) {
  for (const std::string text : {"", "  \n", "hello", "https://run.example.org", "thinpipe", "thinpipe-vx-AAAA"}) {
    const auto why = refusal(parse_invite(text));
    if (text == "thinpipe") {
      EXPECT_EQ(why, kNotWhole);
    } else {
      EXPECT_EQ(why, "this is not an invite: an invite begins with thinpipe-v1-") << text;
    }
  }
  EXPECT_TRUE(holds(refusal(parse_invite("thinpipe-v2-AAAA")), "is of version 2, and this program reads version 1"));
  EXPECT_TRUE(holds(refusal(parse_invite("thinpipe-v12-AAAA")), "is of version 12"));
  EXPECT_TRUE(holds(refusal(parse_invite(std::string(40'000, 'A'))), "this is not an invite: it has 40000 bytes"));
}

TEST(Invite, OfAHostileHandIsRefusedBeforeAnythingIsMadeOfIt) {
  const auto good = some_invite();
  const auto refused = [&](const Invite& invite) { return refusal(parse_invite(text_around(body_of(invite)))); };
  EXPECT_EQ(refused(good), "");
  auto invite = good;
  invite.run = "";
  EXPECT_TRUE(holds(refused(invite), "1 to 64 bytes, not of 0")) << refused(invite);
  invite.run = std::string(65, 'r');
  EXPECT_TRUE(holds(refused(invite), "1 to 64 bytes, not of 65")) << refused(invite);
  invite = good;
  invite.addresses.clear();
  EXPECT_TRUE(holds(refused(invite), "1 to 8 addresses, not 0")) << refused(invite);
  invite.addresses.assign(9, "a:1");
  EXPECT_TRUE(holds(refused(invite), "1 to 8 addresses, not 9")) << refused(invite);
  invite.addresses.assign(8, std::string(61, 'a') + "." + std::string(61, 'a') + "." + std::string(61, 'a') + "." +
                                 std::string(60, 'a') + ".c:65535");
  EXPECT_EQ(refused(invite), "");  // the largest there is
  invite.addresses = {"a b:1"};
  EXPECT_TRUE(holds(refused(invite), "'a b:1' is not an address")) << refused(invite);
  invite = good;
  invite.token = std::string(15, 't');
  EXPECT_TRUE(holds(refused(invite), "16 to 64 bytes, not 15")) << refused(invite);
  invite.token = std::string(65, 't');
  EXPECT_TRUE(holds(refused(invite), "16 to 64 bytes, not 65")) << refused(invite);

  const auto body = body_of(good);
  EXPECT_TRUE(holds(refusal(parse_invite(text_around(body + "x"))), "other lengths than it says"));
  for (size_t size = 0; size < body.size(); ++size) EXPECT_FALSE(parse_invite(text_around(body.substr(0, size))).ok());
  const auto without_der = body.substr(0, body.size() - test::der_text(good.ca_pem).size() - 2);
  EXPECT_TRUE(
      holds(refusal(parse_invite(text_around(without_der + std::string("\x10\x01", 2) + std::string(4097, 'd')))),
            "at most 4096 bytes, not 4097"));
  const auto not_a_certificate = without_der + std::string("\0\x04", 2) + "dddd";
  EXPECT_TRUE(holds(refusal(parse_invite(text_around(not_a_certificate))), "is not a certificate"));
  const auto der = test::der_text(good.ca_pem) + "x";
  const auto longer = without_der + static_cast<char>(der.size() >> 8) + static_cast<char>(der.size() & 255) + der;
  EXPECT_TRUE(holds(refusal(parse_invite(text_around(longer))), "not one certificate"));
}

TEST(Invite, ThatCannotBeReadIsNotWritten) {
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

TEST(Addresses, AreAHostAndAPort) {
  for (const std::string good : {"a:1", "run.example.org:7400", "run.example.org.:7400", "my_host:1", "192.0.2.7:65535",
                                 "[::1]:80", "[2001:db8::7]:7400", "x--1.7:9"}) {
    EXPECT_TRUE(check_address(good).ok()) << good;
  }
  for (const std::string bad : {"",
                                "a",
                                "a:",
                                ":1",
                                "a:0",
                                "a:65536",
                                "a:-1",
                                "a:+1",
                                "a:1x",
                                "a: 1",
                                "::1:80",
                                "[::1]",
                                "[::1]80",
                                "[:1]:80",
                                "[a]:80",
                                "[::1:80",
                                "::1]:80",
                                "1.2.3:80",
                                "1.2.3.256:80",
                                "1.2.3.4.5:80",
                                "-a:1",
                                "a-:1",
                                "a..b:1",
                                ".a:1",
                                "a/b:1",
                                "a b:1",
                                "a%:1",
                                "http://a:1",
                                "\xc3\xa9:1",
                                "a:1\n",
                                "[fe80::1%eth0]:1",
                                "user@a:1"}) {
    const auto status = check_address(bad);
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_FALSE(holds(status.error().message, "\n"));
  }
  EXPECT_FALSE(check_address(std::string("a\0b:1", 5)).ok());
  EXPECT_FALSE(check_address(std::string("[::1\0]:1", 8)).ok());
  EXPECT_FALSE(check_address(std::string(64, 'a') + ":1").ok());
  std::string longest;
  while (longest.size() < 250) longest += "abcd.";
  EXPECT_TRUE(check_address(longest + "a:10").ok());
  EXPECT_FALSE(check_address(longest + "abc:100").ok());
}

TEST(Tokens, AreDifferentEachTime) {
  std::set<std::string> tokens;
  for (int i = 0; i < 100; ++i) tokens.insert(new_token());
  EXPECT_EQ(tokens.size(), 100U);
  EXPECT_EQ(tokens.begin()->size(), 24U);
}

TEST(InviteRecord, SaysWhyItMayNotBeUsed) {
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

TEST(CallerNetwork, IsWhatADiallerCannotChangeAtWill) {
  const std::pair<std::string, std::string> cases[] = {
      {"ipv4:192.0.2.7:40000", "192.0.2.7"},
      {"192.0.2.7:40000", "192.0.2.7"},
      {"192.0.2.7", "192.0.2.7"},
      {"ipv6:%5B2001:db8:1:2:3:4:5:6%5D:40000", "2001:db8:1:2::/64"},
      {"ipv6:[2001:db8:1:2:ffff::1]:40000", "2001:db8:1:2::/64"},
      {"[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"},
      {"2001:db8:1:2::9", "2001:db8:1:2::/64"},
      {"ipv6:%5Bfe80::1%25eth0%5D:40000", "fe80::/64"},
      {"ipv6:[::ffff:192.0.2.7]:40000", "192.0.2.7"},
      {"unix:/tmp/x", "unix:/tmp/x"},
      {"[", "["},
      {"", ""},
  };
  for (const auto& [address, network] : cases) EXPECT_EQ(caller_network(address), network) << address;
  EXPECT_EQ(caller_network(std::string(1000, 'x')).size(), 64U);
}

TEST(JoinLimiter, LetsABurstThroughAndThenAsManyAsAMinuteHolds) {
  JoinLimiter limiter({.burst = 100, .per_minute = 100, .address_burst = 3, .address_per_minute = 6});
  const std::string caller = "ipv4:192.0.2.7:";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.admit(caller + std::to_string(i + 1), kNow).ok());
  EXPECT_EQ(limiter.admit(caller + "9", kNow).error().message, "too many tries to join from 192.0.2.7: wait 10 s");
  EXPECT_EQ(limiter.admit(caller + "9", kNow + milliseconds(9'500)).error().message,
            "too many tries to join from 192.0.2.7: wait 1 s");
  EXPECT_TRUE(limiter.admit("ipv4:192.0.2.8:1", kNow).ok());  // another's
  EXPECT_TRUE(limiter.admit(caller + "9", kNow + seconds(11)).ok());
  EXPECT_FALSE(limiter.admit(caller + "9", kNow + seconds(11)).ok());
  // After an hour no more than the burst.
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

TEST(JoinLimiter, HoldsAllTogetherToOneLimitThatTheRefusedDoNotUse) {
  JoinLimiter limiter({.burst = 5, .per_minute = 60, .address_burst = 2, .address_per_minute = 1});
  for (int i = 0; i < 100; ++i) (void)limiter.admit("192.0.2.1:1", kNow);  // two of these count
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.admit(fmt::format("192.0.2.{}:1", 10 + i), kNow).ok()) << i;
  EXPECT_EQ(limiter.admit("192.0.2.20:1", kNow).error().message, "too many are trying to join: wait 1 s");
  EXPECT_EQ(limiter.remembered(), 4U);  // not who was refused
  EXPECT_TRUE(limiter.admit("192.0.2.20:1", kNow + seconds(1)).ok());
  EXPECT_FALSE(limiter.admit("192.0.2.21:1", kNow + seconds(1)).ok());
}

TEST(JoinLimiter, RemembersNoMoreThanItMay) {
  JoinLimiter limiter(
      {.burst = 1'000'000, .per_minute = 1, .address_burst = 2, .address_per_minute = 1, .max_addresses = 50});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(limiter.admit("192.0.2.1:1", kNow).ok());
  for (int i = 0; i < 5'000; ++i) {
    EXPECT_TRUE(limiter.admit(fmt::format("10.0.{}.{}:1", i / 250, i % 250), kNow).ok());
    EXPECT_LE(limiter.remembered(), 50U);
  }
  EXPECT_FALSE(limiter.admit("192.0.2.1:1", kNow).ok());  // the busiest is not the one forgotten
  EXPECT_TRUE(limiter.admit("192.0.2.2:1", kNow + minutes(5)).ok());
  EXPECT_EQ(limiter.remembered(), 1U);  // those with nothing left to wait for are
}

TEST(JoinLimiter, BearsAClockThatIsSetBack) {
  JoinLimiter limiter({.burst = 100, .per_minute = 60, .address_burst = 1, .address_per_minute = 60});
  EXPECT_TRUE(limiter.admit("192.0.2.1:1", kNow).ok());
  EXPECT_FALSE(limiter.admit("192.0.2.1:1", kNow - minutes(600)).ok());
  EXPECT_TRUE(limiter.admit("192.0.2.1:1", kNow - minutes(600) + seconds(1)).ok());
}

}  // namespace
}  // namespace thinpipe
