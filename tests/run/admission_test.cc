// Invites and enrolment, with a store and an authority but without a coordinator process.
#include "run/coordinator/admission.h"

#include <gtest/gtest.h>

#include "support/scratch.h"

namespace thinpipe {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using test::ScratchFolder;

const WallTime kNow = WallTime(seconds(1'800'000'000));

class Admissions : public testing::Test {
 protected:
  // Makes an invite for an hour and returns its parsed text.
  Invite invite(int64_t uses = 1) {
    control::InviteRequest request;
    request.set_what(control::InviteRequest::CREATE);
    request.set_uses(uses);
    request.set_lifetime_s(3600);
    return parse_invite(admission_.manage(request, addresses_, kNow).take().text()).take();
  }

  static control::JoinRequest request_with(const Invite& invite, const std::string& key_pem) {
    control::JoinRequest request;
    request.set_run(invite.run);
    request.set_token(invite.token);
    request.set_name("Attic PC");
    request.set_certificate_request(certificate_request(key_pem).take());
    return request;
  }

  // The name of the new peer, or the error.
  std::string enrol(const control::JoinRequest& request, WallTime now = kNow) {
    const auto record = admission_.check(request, now);
    if (!record) return record.error().message;
    const auto enrolled = admission_.enrol(record.value(), request);
    return enrolled ? enrolled.value().peer : enrolled.error().message;
  }

  const ScratchFolder folder_;
  std::vector<std::string> addresses_{"run.example.org:7400"};
  RunStore store_ = RunStore::open(folder_ / "run.sqlite").take();
  CertificateAuthority authority_ = CertificateAuthority::open_or_create(folder_ / "identity", "1234abcd").take();
  Admission admission_{"1234abcd", store_, authority_};
};

TEST_F(Admissions, InviteTextHoldsTheRunItsAuthorityAndAtMostEightAddresses) {
  addresses_.assign(10, "192.0.2.7:7400");
  const auto made = invite();
  EXPECT_EQ(made.run, "1234abcd");
  EXPECT_EQ(made.ca_pem, authority_.certificate_pem());
  EXPECT_EQ(made.addresses.size(), 8U);
}

TEST_F(Admissions, EnrolmentCostsAUse_TheSameRequestAgainDoesNot) {
  const auto made = invite();
  const auto request = request_with(made, new_key_pem());
  const auto peer = enrol(request);
  EXPECT_TRUE(peer.starts_with("attic-pc-")) << peer;
  EXPECT_EQ(enrol(request), peer);
  EXPECT_TRUE(enrol(request_with(made, new_key_pem())).ends_with("is used up: ask for a new one"));
}

TEST_F(Admissions, KeyThatCameByAnotherInvite_StaysTheSamePeer) {
  const auto first = invite(), second = invite();
  const auto key = new_key_pem();
  auto request = request_with(first, key);
  const auto peer = enrol(request);
  request.set_token(second.token);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(enrol(request), peer);
  EXPECT_EQ(store_.peer_named(peer).take()->invite, store_.invites().take().front().id);
  EXPECT_FALSE(store_.peer_named("nobody").take());
  EXPECT_TRUE(enrol(request_with(second, new_key_pem())).starts_with("attic-pc-"));  // its use is left
}

TEST_F(Admissions, BadRequestCostsNoUse) {
  const auto made = invite();
  auto bad = request_with(made, new_key_pem());
  bad.set_certificate_request("no request");
  EXPECT_NE(enrol(bad).find("is not a certificate request"), std::string::npos);
  EXPECT_TRUE(enrol(request_with(made, new_key_pem())).starts_with("attic-pc-"));
}

TEST_F(Admissions, ExpiredInvite_IsRefusedExceptForEnrolledPeers) {
  const auto made = invite(3);
  const auto request = request_with(made, new_key_pem());
  const auto peer = enrol(request, kNow - hours(25));  // the clock was set back
  EXPECT_TRUE(peer.starts_with("attic-pc-")) << peer;
  const auto late = enrol(request_with(made, new_key_pem()), kNow + hours(1));
  EXPECT_NE(late.find("expired at 2027-01-15 09:00:00 UTC"), std::string::npos) << late;
  EXPECT_EQ(enrol(request, kNow + hours(24 * 400)), peer);
}

TEST_F(Admissions, RevokedInvite_IsRefusedEvenForEnrolledPeers) {
  const auto made = invite(3);
  const auto request = request_with(made, new_key_pem());
  enrol(request);
  control::InviteRequest revoke;
  revoke.set_what(control::InviteRequest::REVOKE);
  revoke.set_id(store_.invites().take().front().id);
  EXPECT_NE(admission_.manage(revoke, addresses_, kNow).take().invites(0).state(), "open");
  EXPECT_TRUE(enrol(request).ends_with("was revoked: ask for a new one"));
  revoke.set_id("nobody's");
  EXPECT_FALSE(admission_.manage(revoke, addresses_, kNow).ok());
}

TEST_F(Admissions, UnknownTokenAndAnotherRunAreRefused) {
  auto request = request_with(invite(), new_key_pem());
  request.set_token(new_token());
  EXPECT_NE(enrol(request).find("knows no such invite"), std::string::npos);
  request.set_run("ffff");
  EXPECT_NE(enrol(request).find("for another run"), std::string::npos);
}

}  // namespace
}  // namespace thinpipe
