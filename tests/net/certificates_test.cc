#include "net/certificates.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <set>

#include "base/file_system.h"
#include "base/files.h"
#include "net/certificate_maker.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;

CertificateAuthority authority_in(const std::filesystem::path& folder, const std::string& run = "run-1") {
  return CertificateAuthority::open_or_create(folder, run).take();
}

std::string request() { return certificate_request(new_key_pem()).take(); }

int mode_of(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<int>(status.st_mode & 07777) : -1;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string refusal(const Result<CertificateAuthority>& result) { return result ? "" : result.error().message; }

Identity identity_of(const CertificateAuthority& authority, const std::string& san) {
  const auto key = new_key_pem();
  return {authority.certificate_pem(), authority.issue(certificate_request(key).take(), san).take(), key};
}

// A command's standard output and error, followed by its exit status.
std::string output_of(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  return text + fmt::format("exit {}", WEXITSTATUS(::pclose(pipe)));
}

TEST(MemberNames, RoundTripOnlyForPeers) {
  EXPECT_EQ(peer_name("a-7"), "a-7.peer.thinpipe");
  EXPECT_EQ(peer_of_name("a-7.peer.thinpipe"), "a-7");
  EXPECT_TRUE(is_peer_id(std::string(40, 'a')));
  for (const std::string id : {"", "-a", "a-", "A", "a.b", "a b", "\xc3\xa9", "a/"}) {
    EXPECT_FALSE(is_peer_id(id)) << id;
    EXPECT_EQ(peer_of_name(id + ".peer.thinpipe"), std::nullopt) << id;
  }
  EXPECT_FALSE(is_peer_id(std::string(41, 'a')));
  for (const std::string name : {kCoordinatorName, kOperatorName, "a.peer.thinpipe.", "a.peer.thinpipe.org", "a", ""}) {
    EXPECT_EQ(peer_of_name(name), std::nullopt) << name;
  }
}

TEST(CertificateAuthority, IsMadeOnceAndFoundAgain) {
  const ScratchFolder scratch;
  const auto first = authority_in(scratch / "tls");
  EXPECT_EQ(mode_of(scratch / "tls/authority.pem"), 0600);
  EXPECT_EQ(authority_in(scratch / "tls").certificate_pem(), first.certificate_pem());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch / "tls"), {}), 1);
}

// Checks the key's file at every step of its creation.
class ModeWatch final : public FileSystem {
 public:
  int create_unique(std::string& pattern, mode_t mode) override {
    const int descriptor = FileSystem::create_unique(pattern, mode);
    if (holds(pattern, ".pem")) watched_ = descriptor;
    return descriptor;
  }
  ssize_t write(int descriptor, const char* bytes, size_t count) override {
    if (descriptor == watched_) look();
    return FileSystem::write(descriptor, bytes, count);
  }
  int rename(const std::string& from, const std::string& to) override {
    if (holds(to, ".pem")) {
      look();
      watched_ = -1;  // the number may be reused
    }
    return FileSystem::rename(from, to);
  }

  std::set<int> modes_;

 private:
  void look() {
    struct stat status {};
    ::fstat(watched_, &status);
    modes_.insert(static_cast<int>(status.st_mode & 07777));
  }
  int watched_ = -1;
};

TEST(CertificateAuthority, KeyIsNeverReadableByOthers) {
  const ScratchFolder scratch;
  ModeWatch watch;
  const ScopedFileSystem in_place(watch);
  authority_in(scratch.path());
  EXPECT_EQ(watch.modes_, std::set<int>{0600});
}

TEST(CertificateAuthority, RefusesAnInconsistentFile) {
  const ScratchFolder scratch;
  const auto file = scratch / "authority.pem";
  const auto open = [&](const std::string& run = "run-1") {
    return refusal(CertificateAuthority::open_or_create(scratch.path(), run));
  };
  const auto with = [&](const std::string& text) {
    write_file_atomically(file, text, FileMode::kPrivate).take();
    return open();
  };
  const auto certificate = authority_in(scratch.path()).certificate_pem();
  const auto other = authority_in(scratch / "other").certificate_pem();
  const auto whole = read_file(file).value();
  const auto key = whole.substr(0, whole.size() - certificate.size());
  EXPECT_TRUE(holds(open("run-2"), "is of 'thinpipe run run-1', not of 'thinpipe run run-2'")) << open("run-2");

  std::filesystem::permissions(file, std::filesystem::perms(0640));
  EXPECT_TRUE(holds(open(), "chmod 600 " + file.string())) << open();
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  EXPECT_EQ(open(), "");

  EXPECT_TRUE(holds(with(key), "authority.pem is not a certificate"));
  EXPECT_TRUE(holds(with(certificate), "authority.pem is not a private key"));
  EXPECT_TRUE(holds(with(key + other), "do not belong together"));
  EXPECT_TRUE(holds(with(key + certificate.substr(0, 100)), "authority.pem is not a certificate"));
  EXPECT_TRUE(holds(with(key.substr(0, 60) + certificate), "authority.pem is not a private key"));
  EXPECT_TRUE(holds(with(""), "authority.pem is not a private key"));
  EXPECT_EQ(read_file(file).value(), "");  // never replaced
  EXPECT_EQ(with(certificate + key), "");
}

// Whether a machine with its clock at that time accepts the certificate.
bool is_valid_at(time_t time, const std::string& authority_pem, const std::string& pem) {
  X509* const authority = test::x509_of(authority_pem);
  X509* const certificate = test::x509_of(pem);
  X509_STORE* const store = X509_STORE_new();
  X509_STORE_add_cert(store, authority);
  X509_STORE_CTX* const context = X509_STORE_CTX_new();
  X509_STORE_CTX_init(context, store, certificate, nullptr);
  X509_STORE_CTX_set_time(context, 0, time);
  const bool valid = X509_verify_cert(context) == 1;
  X509_STORE_CTX_free(context);
  X509_STORE_free(store);
  for (auto* one : {authority, certificate}) X509_free(one);
  return valid;
}

TEST(CertificateAuthority, Certificates_AreValidAtAnyDate) {
  const ScratchFolder scratch;
  const auto authority = authority_in(scratch.path());
  const auto pem = authority.issue(request(), peer_name("a")).take();
  constexpr int64_t kHour = 3600, kYear = 365 * 24 * kHour;
  const int64_t now = std::time(nullptr);
  for (const int64_t time : {int64_t{0}, now - 10 * kYear, now - 25 * kHour, now - 11 * 60, now, now + 11 * 60,
                             now + 25 * kHour, now + 11 * kYear, now + 5000 * kYear}) {
    EXPECT_TRUE(is_valid_at(static_cast<time_t>(time), authority.certificate_pem(), pem)) << time - now;
  }
}

TEST(CertificateAuthority, RefusesARunWhoseNameDoesNotFit) {
  const ScratchFolder scratch;
  EXPECT_TRUE(CertificateAuthority::open_or_create(scratch / "51", std::string(51, 'r')).ok());
  for (const auto& run : {std::string(), std::string(52, 'r'), std::string("\xff\xfe")}) {
    EXPECT_FALSE(CertificateAuthority::open_or_create(scratch / "x", run).ok());
    EXPECT_FALSE(std::filesystem::exists(scratch / "x/authority.pem"));
  }
}

TEST(CertificateAuthority, Issue_UsesTheGivenNameAndAFreshSerial) {
  const ScratchFolder scratch;
  const auto authority = authority_in(scratch.path());
  const auto pem = authority.issue(request(), peer_name("a")).take();
  EXPECT_EQ(certificate_names(pem).take(), std::vector<std::string>{"a.peer.thinpipe"});
  X509* const certificate = test::x509_of(pem);
  X509* const again = test::x509_of(authority.issue(request(), peer_name("a")).take());
  EXPECT_GT(ASN1_STRING_length(X509_get0_serialNumber(certificate)), 12);
  EXPECT_NE(ASN1_INTEGER_cmp(X509_get0_serialNumber(certificate), X509_get0_serialNumber(again)), 0);
  for (auto* one : {certificate, again}) X509_free(one);
}

// A request with any subject, name and key.
std::string greedy_request(EVP_PKEY* key, bool signed_by_other = false) {
  X509_REQ* made = X509_REQ_new();
  X509_REQ_set_pubkey(made, key);
  X509_NAME_add_entry_by_txt(X509_REQ_get_subject_name(made), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(kCoordinatorName), -1, -1, 0);
  STACK_OF(X509_EXTENSION)* extensions = nullptr;
  for (const auto& [nid, value] : {std::pair{NID_subject_alt_name, "DNS:coordinator.thinpipe"},
                                   std::pair{NID_basic_constraints, "critical,CA:TRUE"}}) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
    X509v3_add_ext(&extensions, extension, -1);
    X509_EXTENSION_free(extension);
  }
  X509_REQ_add_extensions(made, extensions);
  sk_X509_EXTENSION_pop_free(extensions, X509_EXTENSION_free);
  EVP_PKEY* other = EVP_EC_gen("P-256");
  X509_REQ_sign(made, signed_by_other ? other : key, EVP_sha256());
  EVP_PKEY_free(other);
  BIO* bytes = BIO_new(BIO_s_mem());
  PEM_write_bio_X509_REQ(bytes, made);
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bytes, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bytes);
  X509_REQ_free(made);
  return text;
}

TEST(CertificateAuthority, Issue_TakesOnlyThePublicKeyFromTheRequest) {
  const ScratchFolder scratch;
  const auto authority = authority_in(scratch.path());
  const auto key_pem = new_key_pem();
  EVP_PKEY* key = test::key_of(key_pem);
  const auto pem = authority.issue(greedy_request(key), peer_name("a")).take();
  EXPECT_EQ(certificate_names(pem).take(), std::vector<std::string>{"a.peer.thinpipe"});
  X509* certificate = test::x509_of(pem);
  EXPECT_EQ(X509_check_ca(certificate), 0);
  std::array<char, 100> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name.data(), name.size());
  EXPECT_STREQ(name.data(), "a.peer.thinpipe");
  EXPECT_EQ(EVP_PKEY_eq(X509_get0_pubkey(certificate), key), 1);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

TEST(CertificateAuthority, RefusesBadRequestsWithOneLine) {
  const ScratchFolder scratch;
  const auto authority = authority_in(scratch.path());
  const auto issue = [&](const std::string& asked, const std::string& san = "a.peer.thinpipe") {
    const auto result = authority.issue(asked, san);
    return result ? "" : result.error().message;
  };
  EVP_PKEY* p256 = EVP_EC_gen("P-256");
  EVP_PKEY* p384 = EVP_EC_gen("P-384");
  EVP_PKEY* rsa = EVP_RSA_gen(2048);
  EVP_PKEY* spelled_out = EVP_EC_gen("P-256");
  EVP_PKEY_set_utf8_string_param(spelled_out, "encoding", "explicit");
  EXPECT_EQ(issue(greedy_request(p256)), "");
  EXPECT_TRUE(holds(issue(greedy_request(p256, true)), "not signed by the key it is for"));
  for (auto* key : {p384, rsa, spelled_out}) {
    EXPECT_TRUE(holds(issue(greedy_request(key)), "not one of EC P-256")) << issue(greedy_request(key));
  }
  for (auto* key : {p256, p384, rsa, spelled_out}) EVP_PKEY_free(key);

  const auto good = request();
  EXPECT_EQ(issue(good), "");
  EXPECT_TRUE(holds(issue(good + std::string(16 << 10, '\n')), "at most 16384"));
  EXPECT_TRUE(holds(issue(""), "the request is not a certificate request"));
  EXPECT_TRUE(holds(issue(authority.certificate_pem()), "the request is not a certificate request"));
  auto encrypted = good;  // must not ask for a password on the terminal
  encrypted.insert(encrypted.find('\n') + 1,
                   "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00112233445566778899AABB"
                   "CCDDEEFF\n\n");
  EXPECT_TRUE(holds(issue(encrypted), "the request is not a certificate request")) << issue(encrypted);
  for (size_t i = 0; i + 2 < good.size(); i += 7) {  // its last line break may be missing
    auto cut = good.substr(0, i);
    EXPECT_NE(issue(cut), "") << i;
    EXPECT_FALSE(holds(issue(cut), "\n")) << i;
  }
  for (const std::string san : {"", "a", "x.org", "a.peer.thinpipe,DNS:coordinator.thinpipe", "*.peer.thinpipe"}) {
    EXPECT_TRUE(holds(issue(good, san), "is no name of a run's member")) << san;
  }
}

TEST(CertificateAuthority, IsUnderstoodByTheOpenSslProgram) {
  if (!holds(output_of("openssl version"), "exit 0")) GTEST_SKIP() << "there is no openssl program here";
  const ScratchFolder scratch;
  const auto authority = authority_in(scratch.path());
  const auto ca = (scratch / "ca.pem").string();
  write_file_atomically(ca, authority.certificate_pem()).take();
  const auto shown_ca = output_of("openssl x509 -noout -text -nameopt RFC2253 -in " + ca);
  for (const auto* part :
       {"CN=thinpipe run run-1", "CA:TRUE, pathlen:0",
        "X509v3 Key Usage: critical\n"
        "                Certificate Sign\n",
        "prime256v1", "Not Before: Jan  1 00:00:00 1970 GMT", "Not After : Dec 31 23:59:59 9999 GMT"}) {
    EXPECT_TRUE(holds(shown_ca, part)) << part << "\n" << shown_ca;
  }
  const auto leaf = (scratch / "leaf.pem").string();
  write_file_atomically(leaf, authority.issue(request(), peer_name("a")).take()).take();
  const auto verify = [&](const std::string& more) {
    return holds(output_of(fmt::format("openssl verify -x509_strict -CAfile {} {} {}", ca, more, leaf)), "exit 0");
  };
  EXPECT_TRUE(verify("-purpose sslserver -verify_hostname a.peer.thinpipe"));
  EXPECT_TRUE(verify("-purpose sslclient"));
  EXPECT_FALSE(verify("-verify_hostname b.peer.thinpipe"));
  const auto shown = output_of("openssl x509 -noout -text -nameopt RFC2253 -in " + leaf);
  for (const auto* part : {"Subject: CN=a.peer.thinpipe", "Issuer: CN=thinpipe run run-1", "CA:FALSE",
                           "DNS:a.peer.thinpipe\n", "ecdsa-with-SHA256"}) {
    EXPECT_TRUE(holds(shown, part)) << part << "\n" << shown;
  }
}

TEST(Identity, IsSavedAndLoadedWhole) {
  const ScratchFolder scratch;
  const auto authority = authority_in(scratch / "authority");
  const auto identity = identity_of(authority, peer_name("a"));
  save_identity(scratch / "own", identity).take();
  EXPECT_EQ(mode_of(scratch / "own/identity.pem"), 0600);
  const auto loaded = load_identity(scratch / "own").take();
  EXPECT_EQ(loaded.ca_pem, identity.ca_pem);
  EXPECT_EQ(loaded.certificate_pem, identity.certificate_pem);
  EXPECT_EQ(loaded.key_pem, identity.key_pem);
}

TEST(Identity, Inconsistent_IsRefusedByName) {
  const ScratchFolder scratch;
  const auto authority = authority_in(scratch / "authority");
  const auto stranger = authority_in(scratch / "stranger");  // of the same name
  const auto good = identity_of(authority, peer_name("a"));
  const auto load = [&](const Identity& identity) {
    save_identity(scratch / "own", identity).take();
    const auto loaded = load_identity(scratch / "own");
    return loaded ? "" : loaded.error().message;
  };
  EXPECT_EQ(load(good), "");
  auto other_key = good;
  other_key.key_pem = new_key_pem();
  EXPECT_TRUE(holds(load(other_key), "identity.pem: the certificate is not for the key")) << load(other_key);
  auto other_authority = good;
  other_authority.ca_pem = stranger.certificate_pem();
  EXPECT_TRUE(holds(load(other_authority), "identity.pem: the certificate is not signed by")) << load(other_authority);
  auto no_certificate = good;
  no_certificate.certificate_pem = "";
  EXPECT_TRUE(holds(load(no_certificate), "identity.pem: the authority's certificate is not a certificate"))
      << load(no_certificate);
  auto no_key = good;
  no_key.key_pem = good.certificate_pem;
  EXPECT_TRUE(holds(load(no_key), "identity.pem: the key is not a private key")) << load(no_key);

  save_identity(scratch / "own", good).take();
  std::filesystem::permissions(scratch / "own/identity.pem", std::filesystem::perms(0604));
  EXPECT_TRUE(holds(load_identity(scratch / "own").error().message, "chmod 600 "));
  std::filesystem::remove(scratch / "own/identity.pem");
  EXPECT_TRUE(holds(load_identity(scratch / "own").error().message, "identity.pem"));
}

TEST(CertificateNames, NotACertificate_IsRefused) {
  for (const auto& text : {std::string(), std::string("x"), new_key_pem(), request()}) {
    const auto names = certificate_names(text);
    ASSERT_FALSE(names.ok());
    EXPECT_FALSE(holds(names.error().message, "\n"));
  }
}

}  // namespace
}  // namespace thinpipe
