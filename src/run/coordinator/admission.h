// Who may come into a run: invites are made, counted and revoked here, and tokens traded for certificates. The caller
// holds the lock that guards the store.
#pragma once

#include <string>
#include <vector>

#include "net/certificates.h"
#include "net/invite.h"
#include "proto/control.pb.h"
#include "run/coordinator/run_store.h"

namespace thinpipe {

// A key and a certificate of that name for somebody on this machine, saved in the folder.
Status make_identity(const CertificateAuthority& authority, const std::string& name,
                     const std::filesystem::path& folder);

class Admission {
 public:
  // The references must outlive it.
  Admission(std::string run, RunStore& store, const CertificateAuthority& authority);

  // Before anything else is looked at: somebody who asks too often waits.
  Status admit_call(const std::string& address, WallTime now);
  // The invite that the token belongs to, if it is worth something.
  Result<InviteRecord> check(const control::JoinRequest& request, WallTime now);

  struct Enrolled {
    std::string peer, certificate_pem;
  };
  // A use of the invite for a certificate. The same key again gets one for the same peer and costs nothing: the answer
  // may have been lost.
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
