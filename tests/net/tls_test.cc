#include "net/tls.h"

#include <arpa/inet.h>
#include <grpc/grpc_security.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "net/certificate_maker.h"
#include "net/grpc_links.h"
#include "net/stream_link.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using std::chrono::hours;
using test::CertificateOrder;
using test::MadeCertificate;
using test::ScratchFolder;

const WallTime kNow = std::chrono::system_clock::now();
const std::string kWanted = "wanted.peer.thinpipe";

// An authority and its key, for certificates it would not sign by itself.
struct SomeRun {
  ScratchFolder folder;
  CertificateAuthority authority = CertificateAuthority::open_or_create(folder.path(), "a run", kNow).take();
  MadeCertificate root{authority.certificate_pem(), read_file_text("ca.key")};

  Identity member(const std::string& san, CertificateUsage usage = CertificateUsage::kBoth,
                  WallTime until = kNow + hours(1)) const {
    const auto key = new_key_pem();
    auto pem = authority.issue(certificate_request(key).take(), san, kNow - hours(1), until, usage).take();
    return {authority.certificate_pem(), std::move(pem), key};
  }
  Identity ordered(const CertificateOrder& order, const MadeCertificate& issuer) const {
    const auto made = test::make_certificate(order, &issuer);
    return {authority.certificate_pem(), made.pem, made.key_pem};
  }

 private:
  std::string read_file_text(const std::string& name) const {
    std::string text;
    FILE* file = std::fopen((folder / name).c_str(), "r");
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
    std::fclose(file);
    return text;
  }
};

// A server of links that lets in whoever proves exactly one name, the wanted one, and remembers who came to its gate.
class GuardedServer {
 public:
  explicit GuardedServer(std::shared_ptr<grpc::ServerCredentials> credentials)
      : server_(LinkServer::start(
                    "127.0.0.1:0", kMaxMessageBytes,
                    [this](const LinkHello&, const Caller& caller) { return gate(caller); }, std::move(credentials))
                    .take()) {}

  int port() const { return server_->port(); }
  std::vector<Caller> callers() {
    const std::lock_guard lock(mutex_);
    return callers_;
  }

 private:
  Status gate(const Caller& caller) {
    const std::lock_guard lock(mutex_);
    callers_.push_back(caller);
    if (!caller.authenticated) return Error{"who are you?"};
    if (caller.names != std::vector<std::string>{kWanted}) return Error{"not you"};
    return {};
  }

  std::mutex mutex_;
  std::vector<Caller> callers_;
  std::unique_ptr<LinkServer> server_;
};

// Opens a stream: "in" when it was let in, else how it ended. Also the certificate that the server showed.
struct Attempt {
  std::string outcome;
  std::string server_pem;
};

Attempt attempt(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                grpc::ChannelArguments arguments = {}, const std::string& expected = kCoordinatorName) {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  expect_name(arguments, expected);
  const auto channel = grpc::CreateCustomChannel(address, credentials, arguments);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  context.AddMetadata(kRunKey, "a run");
  context.AddMetadata(kPeerKey, "a peer");
  context.AddMetadata(kBoundaryKey, "0");
  context.AddMetadata(kEpochKey, "1");
  const grpc::internal::RpcMethod method(kExchangeMethod, grpc::internal::RpcMethod::BIDI_STREAMING, channel);
  using Factory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      Factory::Create(channel.get(), method, &context));
  stream->WaitForInitialMetadata();
  const bool in = context.GetServerInitialMetadata().contains(kAcceptedKey);
  std::string pem;
  if (const auto proven = context.auth_context()) {
    for (const auto& text : proven->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME))
      pem.assign(text.data(), text.size());
  }
  if (in) context.TryCancel();
  const auto status = stream->Finish();
  if (in) return {"in", pem};
  return {status.error_code() == grpc::StatusCode::PERMISSION_DENIED ? status.error_message()
          : status.error_code() == grpc::StatusCode::UNAVAILABLE
              ? "no connection"
              : fmt::format("{}: {}", static_cast<int>(status.error_code()), status.error_message()),
          pem};
}

Attempt attempt(const GuardedServer& server, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                const grpc::ChannelArguments& arguments = {}, const std::string& expected = kCoordinatorName) {
  return attempt(fmt::format("127.0.0.1:{}", server.port()), credentials, arguments, expected);
}

Attempt attempt(const GuardedServer& server, const Identity& identity) {
  return attempt(server, tls_channel(identity));
}

struct Case {
  std::string what;
  Identity identity;
  std::string outcome;
};

// By the run's own key, but with a name that is not the wanted one. The gate sees them.
void add_other_names(const SomeRun& run, std::vector<Case>& cases) {
  std::vector<std::vector<std::pair<int, std::string>>> wrong = {
      {{GEN_URI, kWanted}},
      {{GEN_EMAIL, kWanted}},
      {{GEN_DNS, kWanted}, {GEN_DNS, kCoordinatorName}},
      {{GEN_DNS, kWanted}, {GEN_DNS, kWanted}},
      {{GEN_DNS, std::string(kCoordinatorName)}},
      {{GEN_URI, kWanted}, {GEN_DNS, "other.peer.thinpipe"}},
  };
  for (const std::string& name : {std::string("other.peer.thinpipe"),
                                  std::string(kOperatorName),
                                  "x" + kWanted,
                                  kWanted + ".",
                                  kWanted + ".org",
                                  "x." + kWanted,
                                  std::string("WANTED.peer.thinpipe"),
                                  std::string("*.peer.thinpipe"),
                                  std::string("*"),
                                  std::string("wanted"),
                                  std::string("wanted.peer"),
                                  " " + kWanted,
                                  kWanted + " ",
                                  std::string("."),
                                  kWanted + std::string("\0", 1),
                                  kWanted + std::string("\0.org", 5),
                                  std::string("\0", 1) + kWanted,
                                  kWanted + "\n",
                                  kWanted.substr(0, kWanted.size() - 1),
                                  kWanted.substr(1)}) {
    wrong.push_back({{GEN_DNS, name}});
  }
  for (size_t i = 0; i < wrong.size(); ++i) {
    cases.push_back({fmt::format("name {}", i),
                     run.ordered({.common_name = kWanted, .names = wrong[i], .extended_usage = "clientAuth"}, run.root),
                     "not you"});
  }
  cases.push_back({"a subject and no name", run.ordered({.common_name = kWanted}, run.root), "not you"});
  for (const auto* peer : {"a", "b-2", "wanted-2", "wante", "wantedd", "0", "peer", "thinpipe"}) {
    cases.push_back({fmt::format("peer {}", peer), run.member(peer_name(peer)), "not you"});
  }
}

void add_other_signers(const SomeRun& run, std::vector<Case>& cases) {
  const CertificateOrder order{.common_name = kWanted, .names = {{GEN_DNS, kWanted}}};
  const CertificateOrder authority_order{.common_name = "thinpipe run a run",
                                         .extended_usage = "",
                                         .key_usage = "critical,keyCertSign",
                                         .constraints = "critical,CA:TRUE,pathlen:0"};
  for (int i = 0; i < 5; ++i) {
    const auto stranger = test::make_certificate(authority_order);  // of the same name, with a key of its own
    auto identity = run.ordered(order, stranger);
    cases.push_back({fmt::format("stranger {}", i), identity, "no connection"});
    identity.certificate_pem += stranger.pem;
    cases.push_back({fmt::format("stranger with its authority {}", i), identity, "no connection"});
    const auto own = test::make_certificate(order);
    cases.push_back({fmt::format("signed by itself {}", i), {run.root.pem, own.pem, own.key_pem}, "no connection"});
    // A member who signs for others.
    const auto member = run.member(kWanted);
    identity = run.ordered(order, {member.certificate_pem, member.key_pem});
    identity.certificate_pem += member.certificate_pem;
    cases.push_back({fmt::format("signed by a member {}", i), identity, "no connection"});
    // An authority below the run's own, which allows none.
    auto below_order = authority_order;
    below_order.common_name = "below";  // of the same name it would not be found
    const auto below = test::make_certificate(below_order, &run.root);
    identity = run.ordered(order, below);
    identity.certificate_pem += below.pem;
    cases.push_back({fmt::format("an authority below {}", i), identity, "no connection"});
    // The certificate of another's, whose key one does not have.
    cases.push_back({fmt::format("another's certificate {}", i),
                     {run.root.pem, run.member(kWanted).certificate_pem, new_key_pem()},
                     "no connection"});
  }
  cases.push_back({"the authority itself", {run.root.pem, run.root.pem, run.root.key_pem}, "no connection"});
}

void add_other_times_and_uses(const SomeRun& run, std::vector<Case>& cases) {
  const CertificateOrder order{.common_name = kWanted, .names = {{GEN_DNS, kWanted}}};
  for (const int ago : {2, 60, 3599, 86400, 86400 * 400}) {
    auto expired = order;
    expired.from_now = std::chrono::seconds(-86400 * 500);
    expired.until = std::chrono::seconds(-ago);
    cases.push_back({fmt::format("expired {} s ago", ago), run.ordered(expired, run.root), "no connection"});
    auto early = order;
    early.from_now = std::chrono::seconds(ago + 600);
    early.until = std::chrono::seconds(ago + 86400);
    cases.push_back({fmt::format("valid in {} s", ago + 600), run.ordered(early, run.root), "no connection"});
    cases.push_back({fmt::format("issued and expired {} s ago", ago),
                     run.member(kWanted, CertificateUsage::kClient, kNow - std::chrono::seconds(std::min(ago, 3000))),
                     "no connection"});
  }
  for (const auto* usage : {"serverAuth", "codeSigning", "emailProtection", "timeStamping", "serverAuth,codeSigning"}) {
    auto other = order;
    other.extended_usage = usage;
    cases.push_back({fmt::format("for {}", usage), run.ordered(other, run.root), "no connection"});
  }
  for (const auto* usage : {"critical,keyCertSign", "critical,cRLSign", "critical,keyEncipherment"}) {
    auto other = order;
    other.key_usage = usage;
    cases.push_back({fmt::format("for {}", usage), run.ordered(other, run.root), "no connection"});
  }
  cases.push_back({"a server's", run.member(kWanted, CertificateUsage::kServer), "no connection"});
}

void add_tampered(const SomeRun& run, std::vector<Case>& cases) {
  const auto good = run.member(kWanted);
  const auto der = test::der_text(good.certificate_pem);
  // The signature is the last 64 bytes or more; its numbers end there.
  for (size_t i = 0; i < 24; ++i) {
    auto changed = der;
    changed[changed.size() - 1 - i] = static_cast<char>(changed[changed.size() - 1 - i] ^ (1 << i % 8));
    auto identity = good;
    identity.certificate_pem = test::pem_of_der(changed);
    cases.push_back({fmt::format("signature changed {} before its end", i), identity, "no connection"});
  }
  // Another member's certificate, with the wanted name written over its own.
  for (const auto* peer : {"unwant", "wanteb", "aaaaaa"}) {
    auto identity = run.member(peer_name(peer));
    auto changed = test::der_text(identity.certificate_pem);
    for (size_t at = changed.find(peer); at != std::string::npos; at = changed.find(peer, at)) {
      changed.replace(at, 6, "wanted");
    }
    identity.certificate_pem = test::pem_of_der(changed);
    cases.push_back({fmt::format("name of {} written over", peer), identity, "no connection"});
  }
}

TEST(Tls, LetsInTheRightCallersAndNoneOfManyWrongOnes) {
  const SomeRun run;
  GuardedServer server(tls_server(run.member(kCoordinatorName, CertificateUsage::kServer), true));
  std::vector<Case> good;
  for (int i = 0; i < 4; ++i) good.push_back({"a peer's", run.member(kWanted), "in"});
  for (int i = 0; i < 3; ++i) good.push_back({"a client's", run.member(kWanted, CertificateUsage::kClient), "in"});
  for (int i = 0; i < 3; ++i) {
    good.push_back({"by hand", run.ordered({.common_name = "x", .names = {{GEN_DNS, kWanted}}}, run.root), "in"});
  }
  std::vector<Case> bad;
  add_other_names(run, bad);
  add_other_signers(run, bad);
  add_other_times_and_uses(run, bad);
  add_tampered(run, bad);
  EXPECT_GE(bad.size(), 100U);
  EXPECT_GE(good.size(), 10U);
  size_t at_the_gate = 0;
  for (const auto& cases : {good, bad, good}) {
    for (const auto& one : cases) {
      EXPECT_EQ(attempt(server, one.identity).outcome, one.outcome) << one.what;
      if (one.outcome != "no connection") ++at_the_gate;
    }
  }
  EXPECT_EQ(attempt(server, tls_channel_without_identity(run.root.pem)).outcome, "no connection");
  EXPECT_EQ(attempt(server, grpc::InsecureChannelCredentials()).outcome, "no connection");
  EXPECT_EQ(server.callers().size(), at_the_gate);  // a refused handshake never gets so far
}

TEST(Tls, LetsAStrangerInAsSuchWhereACertificateIsOnlyAskedFor) {
  const SomeRun run;
  GuardedServer server(tls_server(run.member(kCoordinatorName, CertificateUsage::kServer), false));
  EXPECT_EQ(attempt(server, tls_channel_without_identity(run.root.pem)).outcome, "who are you?");
  ASSERT_EQ(server.callers().size(), 1U);
  EXPECT_FALSE(server.callers()[0].authenticated);
  EXPECT_TRUE(server.callers()[0].names.empty());
  EXPECT_TRUE(server.callers()[0].address.starts_with("ipv4:127.0.0.1:")) << server.callers()[0].address;
  EXPECT_EQ(attempt(server, run.member(kWanted)).outcome, "in");
  // A bad certificate is worse than none.
  const SomeRun other;
  EXPECT_EQ(attempt(server, {run.root.pem, other.member(kWanted).certificate_pem, new_key_pem()}).outcome,
            "no connection");
  auto stranger = other.member(kWanted);
  stranger.ca_pem = run.root.pem;
  EXPECT_EQ(attempt(server, stranger).outcome, "no connection");
  EXPECT_EQ(attempt(server, run.ordered({.names = {{GEN_DNS, kWanted}}, .until = hours(-1) / 2}, run.root)).outcome,
            "no connection");
  EXPECT_EQ(server.callers().size(), 2U);
}

TEST(Tls, ClientTalksToTheServerOfTheExpectedNameAlone) {
  const SomeRun run;
  const SomeRun other;
  const auto client = tls_channel(run.member(kWanted));
  const auto outcome = [&](const Identity& of_server, const std::string& expected) {
    GuardedServer server(tls_server(of_server, true));
    const auto result = attempt(server, client, {}, expected).outcome;
    EXPECT_EQ(server.callers().size(), result == "in" ? 1U : 0U);
    return result;
  };
  EXPECT_EQ(outcome(run.member(kCoordinatorName, CertificateUsage::kServer), kCoordinatorName), "in");
  EXPECT_EQ(outcome(run.member(peer_name("b")), peer_name("b")), "in");
  EXPECT_EQ(outcome(run.member(peer_name("b")), peer_name("c")), "no connection");
  EXPECT_EQ(outcome(run.member(peer_name("b")), kCoordinatorName), "no connection");
  EXPECT_EQ(outcome(run.member(kCoordinatorName, CertificateUsage::kClient), kCoordinatorName), "no connection");
  EXPECT_EQ(outcome(run.member(kCoordinatorName, CertificateUsage::kServer, kNow - hours(1) / 2), kCoordinatorName),
            "no connection");
  auto stranger = other.member(kCoordinatorName);
  stranger.ca_pem = run.root.pem;  // it would let the client in
  EXPECT_EQ(outcome(stranger, kCoordinatorName), "no connection");
}

TEST(Tls, ServerWithoutAWholeIdentityDoesNotListen) {
  const SomeRun run;
  auto broken = run.member(kCoordinatorName);
  broken.key_pem = new_key_pem();
  EXPECT_FALSE(LinkServer::start("127.0.0.1:0", kMaxMessageBytes, let_in, tls_server(broken, true)).ok());
  EXPECT_FALSE(LinkServer::start("127.0.0.1:0", kMaxMessageBytes, let_in,
                                 tls_server(std::make_shared<RenewableIdentity>(broken), true))
                   .ok());
}

TEST(Tls, NewConnectionsSeeARenewedIdentity) {
  const SomeRun run;
  const auto first = run.member(kCoordinatorName);
  const auto second = run.member(kCoordinatorName);
  const auto identity = std::make_shared<RenewableIdentity>(first);
  GuardedServer server(tls_server(identity, true));
  const auto client = run.member(kWanted);
  const auto serial = [](const std::string& pem) { return read_certificate(pem).take().serial_hex; };
  const auto shown = [&] {
    const auto result = attempt(server, client);
    EXPECT_EQ(result.outcome, "in");
    return serial(result.server_pem);
  };
  EXPECT_EQ(shown(), serial(first.certificate_pem));
  EXPECT_EQ(shown(), serial(first.certificate_pem));

  auto broken = run.member(kCoordinatorName);
  broken.key_pem = new_key_pem();
  EXPECT_FALSE(identity->renew(broken).ok());
  EXPECT_EQ(shown(), serial(first.certificate_pem));

  ASSERT_TRUE(identity->renew(second).ok());
  EXPECT_EQ(shown(), serial(second.certificate_pem));
  EXPECT_EQ(shown(), serial(second.certificate_pem));
  // And is as strict as before.
  EXPECT_EQ(attempt(server, run.member(peer_name("other"))).outcome, "not you");
  EXPECT_EQ(attempt(server, tls_channel_without_identity(run.root.pem)).outcome, "no connection");
}

// A session of a client that keeps them; a resumed one shows no certificate.
TEST(Tls, SessionTakenUpAgainProvesNothing) {
  const SomeRun run;
  GuardedServer server(tls_server(run.member(kCoordinatorName, CertificateUsage::kServer), false));
  const auto client = tls_channel(run.member(kWanted));
  grpc_ssl_session_cache* cache = grpc_ssl_session_cache_create_lru(4);
  const auto argument = grpc_ssl_session_cache_create_channel_arg(cache);
  grpc::ChannelArguments arguments;
  arguments.SetPointerWithVtable(argument.key, argument.value.pointer.p, argument.value.pointer.vtable);
  EXPECT_EQ(attempt(server, client, arguments).outcome, "in");
  std::string second = attempt(server, client, arguments).outcome;
  EXPECT_EQ(second, "who are you?");
  grpc_ssl_session_cache_destroy(cache);
}

// Speaks TLS of just that version to the port; how far it got.
std::string handshake(int port, int version, const Identity& identity) {
  const int connection = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return "not connected";
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_security_level(context, 0);  // else this side would not offer the old ones
  SSL_CTX_set_min_proto_version(context, version);
  SSL_CTX_set_max_proto_version(context, version);
  SSL_CTX_set_cipher_list(context, "ALL:@SECLEVEL=0");
  X509* certificate = test::x509_of(identity.certificate_pem);
  EVP_PKEY* key = test::key_of(identity.key_pem);
  SSL_CTX_use_certificate(context, certificate);
  SSL_CTX_use_PrivateKey(context, key);
  const unsigned char protocols[] = "\x02h2";
  SSL_CTX_set_alpn_protos(context, protocols, 3);
  SSL* session = SSL_new(context);
  SSL_set_fd(session, connection);
  const std::string result = SSL_connect(session) == 1 ? SSL_get_version(session) : "refused";
  SSL_free(session);
  EVP_PKEY_free(key);
  X509_free(certificate);
  SSL_CTX_free(context);
  ::close(connection);
  return result;
}

TEST(Tls, SpeaksNothingOlderThan12) {
  const SomeRun run;
  const auto own = run.member(kCoordinatorName);
  const auto client = run.member(kWanted);
  GuardedServer fixed(tls_server(own, true));
  GuardedServer renewable(tls_server(std::make_shared<RenewableIdentity>(own), true));
  for (const auto* server : {&fixed, &renewable}) {
    EXPECT_EQ(handshake(server->port(), TLS1_VERSION, client), "refused");
    EXPECT_EQ(handshake(server->port(), TLS1_1_VERSION, client), "refused");
    EXPECT_EQ(handshake(server->port(), TLS1_2_VERSION, client), "TLSv1.2");
    EXPECT_EQ(handshake(server->port(), TLS1_3_VERSION, client), "TLSv1.3");
  }
}

}  // namespace
}  // namespace thinpipe
