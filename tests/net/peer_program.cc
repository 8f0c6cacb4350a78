// The other end of a link in a separate process, which tests kill or put in another network namespace.
//   peer_program receive LISTEN_ADDRESS MESSAGES   prints its port, then the rate of arrival in bit/s
//   peer_program send ADDRESS MESSAGES
//   peer_program relayed RELAY ADDRESS             the accepting end of a tunnel; prints "joined", lives until killed
// On failure, prints the error and exits 1.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "net/grpc_link.h"
#include "net/link_service.h"
#include "net/transfer.h"
#include "net/tunnel.h"

namespace thinpipe {
namespace {

Status receive(const std::string& listen_address, int64_t messages) {
  const auto gate = [](const wire::Hello&, const Caller&) { return Status{}; };
  const auto server = TRY(LinkServer::start({listen_address}, kTransferBytes, gate));
  std::printf("%d\n", server->ports().front());
  std::fflush(stdout);
  auto accepted = TRY(server->service().wait_for(0, 0, ""));
  PacketLink link(std::move(accepted), transfer_rules(), 0);
  const double rate = TRY(receive_transfer(link, messages));
  std::printf("%.0f\n", rate);
  std::fflush(stdout);
  (void)link.receive(transfer_tag(messages), 0).ok();  // the sender closes first, after it has the answer
  return {};
}

Status send(const std::string& address, int64_t messages) {
  auto dialled = TRY(dial_link(address, link_hello("run", "peer", 0, 0), kTransferBytes, std::chrono::minutes(2)));
  PacketLink link(std::move(dialled), transfer_rules(), 0);
  return send_transfer(link, messages);
}

Status relayed(const std::string& relay, const std::string& accepts_at) {
  prepare_grpc();
  const auto channel = grpc::CreateChannel(relay, grpc::InsecureChannelCredentials());
  const auto tunnel = TRY(Tunnel::open(channel, tunnel_hello("a run", 0, 1, false), {.accepts_at = accepts_at}));
  std::printf("joined\n");
  std::fflush(stdout);
  ::pause();
  return {};
}

}  // namespace
}  // namespace thinpipe

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string mode = argv[1];
  const int64_t messages = std::atoll(argv[3]);
  const auto status = mode == "receive" ? thinpipe::receive(argv[2], messages)
                      : mode == "send"  ? thinpipe::send(argv[2], messages)
                                        : thinpipe::relayed(argv[2], argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s %s: %s\n", argv[0], argv[1], status.error().message.c_str());
  return 1;
}
