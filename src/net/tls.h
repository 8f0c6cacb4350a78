// Turns identities into gRPC credentials: mutual TLS, 1.2 or newer, between the members of one run. Also says who a
// caller has proven to be.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/certificates.h"

namespace grpc {
class ChannelArguments;
class ChannelCredentials;
class ServerCredentials;
class ServerContextBase;
}  // namespace grpc

namespace thinpipe {

// For a server that shows its certificate and asks clients for one of the same authority. If it is required, no client
// connects without one; otherwise a client without one counts as unauthenticated. A bad one is always refused. A server
// cannot listen with an identity whose parts do not match.
std::shared_ptr<grpc::ServerCredentials> tls_server(const Identity& identity, bool require_client_certificate);

// For a client that shows its certificate. Its channel needs expect_name(); otherwise it compares the server's name
// with the dialled address, which no certificate of a run contains.
std::shared_ptr<grpc::ChannelCredentials> tls_channel(const Identity& identity);
// For a machine that wants to join: it knows the authority but has no certificate yet.
std::shared_ptr<grpc::ChannelCredentials> tls_channel_without_identity(const std::string& ca_pem);
// The server must prove this name, whatever address was dialled.
void expect_name(grpc::ChannelArguments& arguments, const std::string& san);

// The transport's knowledge of a caller.
struct Caller {
  std::string address;             // as gRPC writes it: "ipv4:192.0.2.7:40000"
  std::vector<std::string> names;  // the DNS names that its certificate proves; empty without one
  std::string certificate_pem;     // empty without one
  bool authenticated = false;      // has shown a certificate of the run's authority
};

// A resumed TLS session counts as unauthenticated: it shows no certificate, and no member of a run resumes one.
Caller caller_of(const grpc::ServerContextBase& context);

}  // namespace thinpipe
