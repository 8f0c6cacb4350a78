// Decides who may join a run: makes, counts and revokes invites, and trades tokens for certificates. `now` is the
// coordinator's clock; no other clock decides whether an invite has expired. The caller holds the lock that guards the
// store.
#pragma once

#include <string>
#include <vector>

#include "net/certificates.h"
#include "net/invite.h"
#include "proto/control.pb.h"
#include "run/coordinator/run_store.h"

namespace thinpipe {

// Makes a key and a certificate with that name for a process on this machine, and saves them in the folder.
Status make_identity(const CertificateAuthority& authority, const std::string& name,
                     const std::filesystem::path& folder);

class Admission {
 public:
  // The references must outlive it.
  Admission(std::string run, RunStore& store, const CertificateAuthority& authority);

  // Refuses callers that call too often. Call it before looking at anything else.
  Status admit_call(const std::string& address, WallTime now);
  // Returns the invite that the token belongs to, if it may be used.
  Result<InviteRecord> check(const control::JoinRequest& request, WallTime now);

  struct Enrolled {
    std::string peer, certificate_pem;
  };
  // Trades a use of the invite for a certificate. A repeated request with the same key, with any invite, gets one for
  // the same peer and costs no use: the first answer may have been lost.
  Result<Enrolled> enrol(const InviteRecord& invite, const control::JoinRequest& request);

  Result<control::InviteReply> manage(const control::InviteRequest& request, const std::vector<std::string>& addresses,
                                      WallTime now);

 private:
  Result<control::InviteReply> create(const control::InviteRequest& request, const std::vector<std::string>& addresses,
                                      WallTime now);
  Result<std::string> free_peer_name(const std::string& wished);

  const std::string run_;
  RunStore& store_;
  const CertificateAuthority& authority_;
  JoinLimiter limiter_;
};

}  // namespace thinpipe
