#include "run/coordinator/admission.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "base/sha256.h"

namespace thinpipe {
namespace {

// A machine that joins calls five times: four looks and the enrolment. Several machines may share one address.
constexpr JoinLimits kJoinLimits{.burst = 300, .per_minute = 600, .address_burst = 60, .address_per_minute = 120};
constexpr size_t kMaxNoteBytes = 200;
constexpr int64_t kMaxUses = 100'000;
constexpr int64_t kMaxLife_s = 10LL * 365 * 24 * 3600;

std::string state_of(const InviteRecord& invite, WallTime now) {
  const auto usable = may_use(invite, now);
  return usable.ok() ? "open" : usable.error().message;
}

}  // namespace

Status make_identity(const CertificateAuthority& authority, const std::string& name,
                     const std::filesystem::path& folder) {
  const auto key = new_key_pem();
  const auto request = TRY(certificate_request(key));
  const auto certificate = TRY(authority.issue(request, name));
  return save_identity(folder, {authority.certificate_pem(), certificate, key});
}

Admission::Admission(std::string run, RunStore& store, const CertificateAuthority& authority)
    : run_(std::move(run)), store_(store), authority_(authority), limiter_(kJoinLimits) {}

Status Admission::admit_call(const std::string& address, WallTime now) { return limiter_.admit(address, now); }

Result<InviteRecord> Admission::check(const control::JoinRequest& request, WallTime now) {
  if (request.run() != run_) return Error{"the invite is for another run; ask this one's organiser for an invite"};
  const auto hash = sha256_hex(request.token());
  const auto invites = TRY(store_.invites());
  for (const auto& invite : invites) {
    if (invite.token_sha256 != hash) continue;
    if (const auto known = store_.peer_with_key(sha256_hex(request.certificate_request())); known && known.value()) {
      // The answer was lost, or the machine has lost its certificate. Asking again costs no further use.
      if (known.value()->invite == invite.id && !invite.revoked) return invite;
    }
    TRY(may_use(invite, now));
    return invite;
  }
  return Error{
      "this run knows no such invite: it was altered, or belongs to another run; ask the organiser for a new one"};
}

Result<std::string> Admission::free_peer_name(const std::string& wished) {
  std::string base;
  for (const char c : wished.substr(0, 24)) {
    const auto lower = static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    const bool plain = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (plain || (!base.empty() && base.back() != '-')) base += plain ? lower : '-';
  }
  while (!base.empty() && base.back() == '-') base.pop_back();
  if (base.empty()) base = "host";
  while (true) {
    const auto name = fmt::format("{}-{}", base, random_hex(3));
    const auto taken = TRY(store_.peer_named(name));
    if (!taken) return name;
  }
}

Result<Admission::Enrolled> Admission::enrol(const InviteRecord& invite, const control::JoinRequest& request) {
  const auto key_hash = sha256_hex(request.certificate_request());
  const auto known = TRY(store_.peer_with_key(key_hash));
  // One key is one peer, also if it comes with another invite.
  const auto peer = known ? known->peer : TRY(free_peer_name(request.name()));
  // The certificate comes first: a bad request must not cost a use.
  const auto certificate = TRY(authority_.issue(request.certificate_request(), peer_name(peer)));
  if (!known) TRY(store_.enrol({peer, invite.id, key_hash}));
  return Enrolled{peer, certificate};
}

Result<control::InviteReply> Admission::manage(const control::InviteRequest& request,
                                               const std::vector<std::string>& addresses, WallTime now) {
  if (request.what() == control::InviteRequest::CREATE) return create(request, addresses, now);
  auto invites = TRY(store_.invites());
  control::InviteReply reply;
  bool found = false;
  for (auto& invite : invites) {
    if (request.what() == control::InviteRequest::REVOKE && invite.id == request.id()) {
      found = true;
      invite.revoked = true;
      TRY(store_.put_invite(invite));
    }
    auto& line = *reply.add_invites();
    line.set_id(invite.id);
    line.set_uses_left(invite.uses_left);
    line.set_expires(utc_text(invite.expires));
    line.set_state(state_of(invite, now));
    line.set_note(invite.note);
  }
  if (request.what() == control::InviteRequest::REVOKE && !found) {
    return Error{fmt::format("there is no invite {}; `thinpipe invite --list` shows them", request.id())};
  }
  return reply;
}

Result<control::InviteReply> Admission::create(const control::InviteRequest& request,
                                               const std::vector<std::string>& addresses, WallTime now) {
  if (request.uses() < 1 || request.uses() > kMaxUses) {
    return Error{fmt::format("an invite for {} uses: 1 to {} are right", request.uses(), kMaxUses)};
  }
  if (request.lifetime_s() < 1 || request.lifetime_s() > kMaxLife_s || request.note().size() > kMaxNoteBytes) {
    return Error{"an invite lives from a second to ten years, and its note has at most 200 bytes"};
  }
  // A machine may have more addresses than an invite has room for; announced ones come first.
  auto named = addresses;
  named.resize(std::min(named.size(), kMaxInviteAddresses));
  const auto token = new_token();
  InviteRecord record;
  record.id = random_hex(4);
  record.token_sha256 = sha256_hex(token);
  record.expires = now + std::chrono::seconds(request.lifetime_s());
  record.uses_left = request.uses();
  record.note = request.note();
  TRY(store_.put_invite(record));
  control::InviteReply reply;
  reply.set_id(record.id);
  reply.set_text(to_text(Invite{run_, named, authority_.certificate_pem(), token}));
  return reply;
}

}  // namespace thinpipe
