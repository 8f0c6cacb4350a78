// Credentials that prove one wanted name, and many that do not, with how far each should get. For every port of a run.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "net/certificate_maker.h"
#include "support/scratch.h"

namespace thinpipe::test {

// An authority and its key, also for certificates it would not sign.
struct SomeRun {
  // A new run.
  explicit SomeRun(std::shared_ptr<ScratchFolder> own = std::make_shared<ScratchFolder>())
      : SomeRun(own->path(), "a run") {
    scratch = std::move(own);
  }
  // The run of an existing folder.
  SomeRun(const std::filesystem::path& folder, const std::string& run)
      : authority(CertificateAuthority::open_or_create(folder, run).take()),
        root{authority.certificate_pem(), read_file(folder / "authority.pem").take()},
        name(run) {}

  std::shared_ptr<ScratchFolder> scratch;  // shared only to be passed on
  CertificateAuthority authority;
  MadeCertificate root;
  std::string name;

  Identity member(const std::string& san) const {
    const auto key = new_key_pem();
    return {authority.certificate_pem(), authority.issue(certificate_request(key).take(), san).take(), key};
  }
  Identity ordered(const CertificateOrder& order, const MadeCertificate& issuer) const {
    const auto made = make_certificate(order, &issuer);
    return {authority.certificate_pem(), made.pem, made.key_pem};
  }
};

enum class Entry { kIn, kNotYou, kNoConnection };

struct CredentialCase {
  std::string what;
  Identity identity;
  Entry entry;
};

// Signed by the run's key, but without the wanted name. The gate sees them.
inline void add_other_names(const SomeRun& run, const std::string& wanted, std::vector<CredentialCase>& cases) {
  std::vector<std::vector<std::pair<int, std::string>>> wrong = {
      {{GEN_URI, wanted}},
      {{GEN_EMAIL, wanted}},
      {{GEN_DNS, wanted}, {GEN_DNS, kCoordinatorName}},
      {{GEN_DNS, wanted}, {GEN_DNS, wanted}},
      {{GEN_DNS, std::string(kCoordinatorName)}},
      {{GEN_URI, wanted}, {GEN_DNS, "other.peer.thinpipe"}},
  };
  for (const std::string& name : {std::string("other.peer.thinpipe"),
                                  std::string(kOperatorName),
                                  "x" + wanted,
                                  wanted + ".",
                                  wanted + ".org",
                                  "x." + wanted,
                                  std::string("WANTED.peer.thinpipe"),
                                  std::string("*.peer.thinpipe"),
                                  std::string("*"),
                                  std::string("wanted"),
                                  std::string("wanted.peer"),
                                  " " + wanted,
                                  wanted + " ",
                                  std::string("."),
                                  wanted + std::string("\0", 1),
                                  wanted + std::string("\0.org", 5),
                                  std::string("\0", 1) + wanted,
                                  wanted + "\n",
                                  wanted.substr(0, wanted.size() - 1),
                                  wanted.substr(1)}) {
    wrong.push_back({{GEN_DNS, name}});
  }
  std::erase(wrong, std::vector<std::pair<int, std::string>>{{GEN_DNS, wanted}});
  for (size_t i = 0; i < wrong.size(); ++i) {
    cases.push_back({fmt::format("name {}", i),
                     run.ordered({.common_name = wanted, .names = wrong[i], .extended_usage = "clientAuth"}, run.root),
                     Entry::kNotYou});
  }
  cases.push_back({"a subject and no name", run.ordered({.common_name = wanted}, run.root), Entry::kNotYou});
  for (const auto* peer : {"a", "b-2", "wanted-2", "wante", "wantedd", "0", "peer", "thinpipe"}) {
    cases.push_back({fmt::format("peer {}", peer), run.member(peer_name(peer)), Entry::kNotYou});
  }
}

inline void add_other_signers(const SomeRun& run, const std::string& wanted, std::vector<CredentialCase>& cases) {
  const CertificateOrder order{.common_name = wanted, .names = {{GEN_DNS, wanted}}};
  const CertificateOrder authority_order{.common_name = "thinpipe run " + run.name,
                                         .extended_usage = "",
                                         .key_usage = "critical,keyCertSign",
                                         .constraints = "critical,CA:TRUE,pathlen:0"};
  for (int i = 0; i < 5; ++i) {
    const auto stranger = make_certificate(authority_order);  // the same name with another key
    auto identity = run.ordered(order, stranger);
    cases.push_back({fmt::format("stranger {}", i), identity, Entry::kNoConnection});
    identity.certificate_pem += stranger.pem;
    cases.push_back({fmt::format("stranger with its authority {}", i), identity, Entry::kNoConnection});
    const auto own = make_certificate(order);
    cases.push_back(
        {fmt::format("signed by itself {}", i), {run.root.pem, own.pem, own.key_pem}, Entry::kNoConnection});
    // A member that signs for others.
    const auto member = run.member(wanted);
    identity = run.ordered(order, {member.certificate_pem, member.key_pem});
    identity.certificate_pem += member.certificate_pem;
    cases.push_back({fmt::format("signed by a member {}", i), identity, Entry::kNoConnection});
    // An intermediate authority, which the run's forbids.
    auto below_order = authority_order;
    below_order.common_name = "below";  // with the same name it would not be found
    const auto below = make_certificate(below_order, &run.root);
    identity = run.ordered(order, below);
    identity.certificate_pem += below.pem;
    cases.push_back({fmt::format("an authority below {}", i), identity, Entry::kNoConnection});
    // Another's certificate without its key.
    cases.push_back({fmt::format("another's certificate {}", i),
                     {run.root.pem, run.member(wanted).certificate_pem, new_key_pem()},
                     Entry::kNoConnection});
  }
  cases.push_back({"the authority itself", {run.root.pem, run.root.pem, run.root.key_pem}, Entry::kNoConnection});
}

inline void add_other_times_and_uses(const SomeRun& run, const std::string& wanted,
                                     std::vector<CredentialCase>& cases) {
  const CertificateOrder order{.common_name = wanted, .names = {{GEN_DNS, wanted}}};
  for (const int ago : {2, 60, 3599, 86400, 86400 * 400}) {
    auto expired = order;
    expired.from_now = std::chrono::seconds(-86400 * 500);
    expired.until = std::chrono::seconds(-ago);
    cases.push_back({fmt::format("expired {} s ago", ago), run.ordered(expired, run.root), Entry::kNoConnection});
    auto early = order;
    early.from_now = std::chrono::seconds(ago + 600);
    early.until = std::chrono::seconds(ago + 86400);
    cases.push_back({fmt::format("valid in {} s", ago + 600), run.ordered(early, run.root), Entry::kNoConnection});
  }
  for (const auto* usage : {"serverAuth", "codeSigning", "emailProtection", "timeStamping", "serverAuth,codeSigning"}) {
    auto other = order;
    other.extended_usage = usage;
    cases.push_back({fmt::format("for {}", usage), run.ordered(other, run.root), Entry::kNoConnection});
  }
  for (const auto* usage : {"critical,keyCertSign", "critical,cRLSign", "critical,keyEncipherment"}) {
    auto other = order;
    other.key_usage = usage;
    cases.push_back({fmt::format("for {}", usage), run.ordered(other, run.root), Entry::kNoConnection});
  }
}

inline void add_tampered(const SomeRun& run, const std::string& wanted, std::vector<CredentialCase>& cases) {
  const auto good = run.member(wanted);
  const auto der = der_text(good.certificate_pem);
  // The signature is the last 64 bytes or more; its numbers end there.
  for (size_t i = 0; i < 24; ++i) {
    auto changed = der;
    changed[changed.size() - 1 - i] = static_cast<char>(changed[changed.size() - 1 - i] ^ (1 << i % 8));
    auto identity = good;
    identity.certificate_pem = pem_of_der(changed);
    cases.push_back({fmt::format("signature changed {} before its end", i), identity, Entry::kNoConnection});
  }
  // Another member's certificate, its name overwritten with the wanted one.
  for (const auto* peer : {"unwant", "wanteb", "aaaaaa"}) {
    auto identity = run.member(peer_name(peer));
    auto changed = der_text(identity.certificate_pem);
    for (size_t at = changed.find(peer); at != std::string::npos; at = changed.find(peer, at)) {
      changed.replace(at, 6, "wanted");
    }
    identity.certificate_pem = pem_of_der(changed);
    cases.push_back({fmt::format("name of {} written over", peer), identity, Entry::kNoConnection});
  }
}

inline std::vector<CredentialCase> bad_credentials(const SomeRun& run, const std::string& wanted) {
  std::vector<CredentialCase> cases;
  add_other_names(run, wanted, cases);
  add_other_signers(run, wanted, cases);
  add_other_times_and_uses(run, wanted, cases);
  add_tampered(run, wanted, cases);
  return cases;
}

inline std::vector<CredentialCase> good_credentials(const SomeRun& run, const std::string& wanted) {
  std::vector<CredentialCase> cases;
  for (int i = 0; i < 5; ++i) {
    cases.push_back({"the authority's", run.member(wanted), Entry::kIn});
    cases.push_back(
        {"by hand, a client's", run.ordered({.common_name = "x", .names = {{GEN_DNS, wanted}}}, run.root), Entry::kIn});
  }
  return cases;
}

}  // namespace thinpipe::test
