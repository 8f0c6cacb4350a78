#include "net/tls.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>

#include <optional>

#include "net/grpc_link.h"

namespace thinpipe {
namespace {

grpc_ssl_client_certificate_request_type request_type(bool require_client_certificate) {
  return require_client_certificate ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
}

// What one set of credentials has handed to gRPC last.
class IdentityFetcher {
 public:
  explicit IdentityFetcher(std::shared_ptr<RenewableIdentity> identity) : identity_(std::move(identity)) {}

  // Called by gRPC before each handshake.
  static grpc_ssl_certificate_config_reload_status fetch(void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<IdentityFetcher*>(self)->fetch_newer(config);
  }

 private:
  grpc_ssl_certificate_config_reload_status fetch_newer(grpc_ssl_server_certificate_config** config) {
    const std::lock_guard lock(mutex_);
    const auto [identity, renewals] = identity_->current();
    if (handed_out_ == renewals) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{identity.key_pem.c_str(), identity.certificate_pem.c_str()};
    *config = grpc_ssl_server_certificate_config_create(identity.ca_pem.c_str(), &pair, 1);
    if (*config == nullptr) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    handed_out_ = renewals;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<RenewableIdentity> identity_;
  std::mutex mutex_;
  std::optional<uint64_t> handed_out_;
};

// gRPC keeps a bare pointer for as long as a server may still shake hands, which outlasts the credentials given to it.
IdentityFetcher* keep_for_good(std::unique_ptr<IdentityFetcher> fetcher) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<IdentityFetcher>>();
  const std::lock_guard lock(mutex);
  return kept->emplace_back(std::move(fetcher)).get();
}

// gRPC's C++ side has no credentials whose certificate is asked for at each handshake; its C side does. (What the C++
// side has instead reads files again every so many seconds, a key and a certificate that may be halfway replaced.)
class RenewableServerCredentials final : public grpc::ServerCredentials {
 public:
  RenewableServerCredentials(std::shared_ptr<RenewableIdentity> identity, bool require_client_certificate)
      : credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                request_type(require_client_certificate), IdentityFetcher::fetch,
                keep_for_good(std::make_unique<IdentityFetcher>(std::move(identity)))))) {}
  ~RenewableServerCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    TP_CHECK(false, "callers prove who they are by certificates alone");
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

Status RenewableIdentity::renew(Identity identity) {
  if (auto whole = check_identity(identity); !whole) return whole;
  const std::lock_guard lock(mutex_);
  identity_ = std::move(identity);
  ++renewals_;
  return {};
}

std::pair<Identity, uint64_t> RenewableIdentity::current() const {
  const std::lock_guard lock(mutex_);
  return {identity_, renewals_};
}

std::shared_ptr<grpc::ServerCredentials> tls_server(const Identity& identity, bool require_client_certificate) {
  prepare_grpc();
  grpc::SslServerCredentialsOptions options(request_type(require_client_certificate));
  options.pem_root_certs = identity.ca_pem;
  options.pem_key_cert_pairs.push_back({identity.key_pem, identity.certificate_pem});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> tls_server(std::shared_ptr<RenewableIdentity> identity,
                                                    bool require_client_certificate) {
  prepare_grpc();
  return std::make_shared<RenewableServerCredentials>(std::move(identity), require_client_certificate);
}

std::shared_ptr<grpc::ChannelCredentials> tls_channel(const Identity& identity) {
  prepare_grpc();
  return grpc::SslCredentials({identity.ca_pem, identity.key_pem, identity.certificate_pem});
}

std::shared_ptr<grpc::ChannelCredentials> tls_channel_without_identity(const std::string& ca_pem) {
  prepare_grpc();
  return grpc::SslCredentials({ca_pem, "", ""});
}

void expect_name(grpc::ChannelArguments& arguments, const std::string& san) { arguments.SetSslTargetNameOverride(san); }

Caller caller_of(const grpc::ServerContextBase& context) {
  Caller caller{.address = context.peer(), .names = {}, .authenticated = false};
  const auto proven = context.auth_context();
  if (!proven || !proven->IsPeerAuthenticated()) return caller;
  for (const auto& reused : proven->FindPropertyValues(GRPC_SSL_SESSION_REUSED_PROPERTY)) {
    if (reused != "false") return caller;
  }
  caller.authenticated = true;
  // Not GetPeerIdentity(): without a name of the kind meant here that would be the subject, or an address.
  for (const auto& name : proven->FindPropertyValues(GRPC_PEER_DNS_PROPERTY_NAME)) {
    caller.names.emplace_back(name.data(), name.size());
  }
  return caller;
}

}  // namespace thinpipe
