#include "net/tls.h"

#include <grpc/grpc_security.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>

#include "net/grpc_link.h"

namespace thinpipe {

std::shared_ptr<grpc::ServerCredentials> tls_server(const Identity& identity, bool require_client_certificate) {
  prepare_grpc();
  grpc::SslServerCredentialsOptions options(require_client_certificate
                                                ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = identity.ca_pem;
  options.pem_key_cert_pairs.push_back({identity.key_pem, identity.certificate_pem});
  return grpc::SslServerCredentials(options);
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
  Caller caller{.address = context.peer(), .names = {}, .certificate_pem = {}, .authenticated = false};
  const auto proven = context.auth_context();
  if (!proven || !proven->IsPeerAuthenticated()) return caller;
  for (const auto& reused : proven->FindPropertyValues(GRPC_SSL_SESSION_REUSED_PROPERTY)) {
    if (reused != "false") return caller;
  }
  caller.authenticated = true;
  // Not GetPeerIdentity(): without a DNS name it returns the subject or an address.
  for (const auto& name : proven->FindPropertyValues(GRPC_PEER_DNS_PROPERTY_NAME)) {
    caller.names.emplace_back(name.data(), name.size());
  }
  for (const auto& pem : proven->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME)) {
    caller.certificate_pem.assign(pem.data(), pem.size());
  }
  return caller;
}

}  // namespace thinpipe
