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

#include "net/credential_cases.h"
#include "net/grpc_links.h"

namespace thinpipe {
namespace {

using std::chrono::hours;
using test::SomeRun;

const std::string kWanted = "wanted.peer.thinpipe";

// A link server that admits callers that prove exactly the wanted name, and records who came to its gate.
class GuardedServer {
 public:
  explicit GuardedServer(std::shared_ptr<grpc::ServerCredentials> credentials)
      : server_(LinkServer::start(
                    {"127.0.0.1:0"}, kMaxPayloadBytes,
                    [this](const wire::Hello&, const Caller& caller) { return gate(caller); }, std::move(credentials))
                    .take()) {}

  int port() const { return server_->ports().front(); }
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

// Opens a stream: "in" if admitted, else how it ended.
std::string attempt(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                    grpc::ChannelArguments arguments = {}, const std::string& expected = kCoordinatorName) {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  expect_name(arguments, expected);
  const auto channel = grpc::CreateCustomChannel(address, credentials, arguments);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const auto stream = wire::Links::NewStub(channel)->Exchange(&context);
  wire::Frame frame;
  *frame.mutable_hello() = hello_for(0);
  const bool in = stream->Write(frame) && stream->Read(&frame) && frame.has_accepted();
  if (in) context.TryCancel();
  const auto status = stream->Finish();
  if (in) return "in";
  return status.error_code() == grpc::StatusCode::PERMISSION_DENIED ? status.error_message()
         : status.error_code() == grpc::StatusCode::UNAVAILABLE
             ? "no connection"
             : fmt::format("{}: {}", static_cast<int>(status.error_code()), status.error_message());
}

std::string attempt(const GuardedServer& server, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                    const grpc::ChannelArguments& arguments = {}, const std::string& expected = kCoordinatorName) {
  return attempt(fmt::format("127.0.0.1:{}", server.port()), credentials, arguments, expected);
}

std::string attempt(const GuardedServer& server, const Identity& identity) {
  return attempt(server, tls_channel(identity));
}

TEST(Tls, AdmitsOnlyCallersWithRightCredentials) {
  const SomeRun run;
  GuardedServer server(tls_server(run.member(kCoordinatorName), true));
  const auto good = test::good_credentials(run, kWanted);
  const auto bad = test::bad_credentials(run, kWanted);
  EXPECT_GE(bad.size(), 100U);
  EXPECT_GE(good.size(), 10U);
  size_t at_the_gate = 0;
  for (const auto& cases : {good, bad, good}) {
    for (const auto& one : cases) {
      const char* expected[] = {"in", "not you", "no connection"};
      EXPECT_EQ(attempt(server, one.identity), expected[static_cast<int>(one.entry)]) << one.what;
      if (one.entry != test::Entry::kNoConnection) ++at_the_gate;
    }
  }
  EXPECT_EQ(attempt(server, tls_channel_without_identity(run.root.pem)), "no connection");
  EXPECT_EQ(attempt(server, grpc::InsecureChannelCredentials()), "no connection");
  EXPECT_EQ(server.callers().size(), at_the_gate);  // a refused handshake never gets there
}

TEST(Tls, OptionalCertificate_CallerWithoutOneIsUnauthenticated) {
  const SomeRun run;
  GuardedServer server(tls_server(run.member(kCoordinatorName), false));
  EXPECT_EQ(attempt(server, tls_channel_without_identity(run.root.pem)), "who are you?");
  ASSERT_EQ(server.callers().size(), 1U);
  EXPECT_FALSE(server.callers()[0].authenticated);
  EXPECT_TRUE(server.callers()[0].names.empty());
  EXPECT_TRUE(server.callers()[0].address.starts_with("ipv4:127.0.0.1:")) << server.callers()[0].address;
  EXPECT_EQ(attempt(server, run.member(kWanted)), "in");
  // A bad certificate is refused even here.
  const SomeRun other;
  EXPECT_EQ(attempt(server, {run.root.pem, other.member(kWanted).certificate_pem, new_key_pem()}), "no connection");
  auto stranger = other.member(kWanted);
  stranger.ca_pem = run.root.pem;
  EXPECT_EQ(attempt(server, stranger), "no connection");
  EXPECT_EQ(attempt(server, run.ordered({.names = {{GEN_DNS, kWanted}}, .until = hours(-1) / 2}, run.root)),
            "no connection");
  EXPECT_EQ(server.callers().size(), 2U);
}

TEST(Tls, Client_RefusesAServerWithAnotherName) {
  const SomeRun run;
  const SomeRun other;
  const auto client = tls_channel(run.member(kWanted));
  const auto outcome = [&](const Identity& of_server, const std::string& expected) {
    GuardedServer server(tls_server(of_server, true));
    const auto result = attempt(server, client, {}, expected);
    EXPECT_EQ(server.callers().size(), result == "in" ? 1U : 0U);
    return result;
  };
  EXPECT_EQ(outcome(run.member(kCoordinatorName), kCoordinatorName), "in");
  EXPECT_EQ(outcome(run.member(peer_name("b")), peer_name("b")), "in");
  EXPECT_EQ(outcome(run.member(peer_name("b")), peer_name("c")), "no connection");
  EXPECT_EQ(outcome(run.member(peer_name("b")), kCoordinatorName), "no connection");
  const test::CertificateOrder order{.names = {{GEN_DNS, kCoordinatorName}}, .extended_usage = "serverAuth"};
  EXPECT_EQ(outcome(run.ordered(order, run.root), kCoordinatorName), "in");
  auto clients = order;
  clients.extended_usage = "clientAuth";
  EXPECT_EQ(outcome(run.ordered(clients, run.root), kCoordinatorName), "no connection");
  auto expired = order;
  expired.until = hours(-1) / 2;
  EXPECT_EQ(outcome(run.ordered(expired, run.root), kCoordinatorName), "no connection");
  auto stranger = other.member(kCoordinatorName);
  stranger.ca_pem = run.root.pem;  // it would let the client in
  EXPECT_EQ(outcome(stranger, kCoordinatorName), "no connection");
}

TEST(Tls, Server_WithAnIncompleteIdentity_DoesNotListen) {
  const SomeRun run;
  auto broken = run.member(kCoordinatorName);
  broken.key_pem = new_key_pem();
  EXPECT_FALSE(LinkServer::start({"127.0.0.1:0"}, kMaxPayloadBytes, let_in, tls_server(broken, true)).ok());
}

// The client caches sessions; a resumed one shows no certificate.
TEST(Tls, ResumedSession_IsUnauthenticated) {
  const SomeRun run;
  GuardedServer server(tls_server(run.member(kCoordinatorName), false));
  const auto client = tls_channel(run.member(kWanted));
  grpc_ssl_session_cache* cache = grpc_ssl_session_cache_create_lru(4);
  const auto argument = grpc_ssl_session_cache_create_channel_arg(cache);
  grpc::ChannelArguments arguments;
  arguments.SetPointerWithVtable(argument.key, argument.value.pointer.p, argument.value.pointer.vtable);
  EXPECT_EQ(attempt(server, client, arguments), "in");
  EXPECT_EQ(attempt(server, client, arguments), "who are you?");
  grpc_ssl_session_cache_destroy(cache);
}

// Tries only that TLS version; returns how far it got.
std::string handshake(int port, int version, const Identity& identity) {
  const int connection = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return "not connected";
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_security_level(context, 0);  // else this side would not offer old versions
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

TEST(Tls, RefusesVersionsBefore12) {
  const SomeRun run;
  const auto client = run.member(kWanted);
  const GuardedServer server(tls_server(run.member(kCoordinatorName), true));
  EXPECT_EQ(handshake(server.port(), TLS1_VERSION, client), "refused");
  EXPECT_EQ(handshake(server.port(), TLS1_1_VERSION, client), "refused");
  EXPECT_EQ(handshake(server.port(), TLS1_2_VERSION, client), "TLSv1.2");
  EXPECT_EQ(handshake(server.port(), TLS1_3_VERSION, client), "TLSv1.3");
}

}  // namespace
}  // namespace thinpipe
