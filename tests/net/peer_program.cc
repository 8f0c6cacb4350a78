// The other end of a link in a process of its own, which tests kill or put in another network namespace.
//   peer_program receive LISTEN_ADDRESS MESSAGES   prints its port; then the rate at which they came, in bit/s
//   peer_program send ADDRESS MESSAGES
// Prints what went wrong and exits 1 otherwise.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "net/grpc_link.h"
#include "net/link_service.h"
#include "net/transfer.h"

namespace thinpipe {
namespace {

constexpr LinkLimits kLimits{kTransferCapacity, 1, kTransferMessageBytes};

Status receive(const std::string& listen_address, int64_t messages) {
  const auto gate = [](const LinkHello&, const LinkCaller&) { return Status{}; };
  auto server = LinkServer::start(listen_address, kTransferMessageBytes, gate);
  if (!server) return server.error();
  std::printf("%d\n", server.value()->port());
  std::fflush(stdout);
  auto link = server.value()->service().wait_for(0, 0, kLimits);
  if (!link) return link.error();
  const auto rate = receive_transfer(*link.value(), messages);
  if (!rate) return rate.error();
  std::printf("%.0f\n", rate.value());
  std::fflush(stdout);
  (void)link.value()->receive().ok();  // the sender closes first, with the answer in its hands
  return {};
}

Status send(const std::string& address, int64_t messages) {
  auto link = dial_link(address, {"run", "peer", 0, 0}, kLimits, std::chrono::seconds(10));
  if (!link) return link.error();
  return send_transfer(*link.value(), messages);
}

}  // namespace
}  // namespace thinpipe

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string mode = argv[1];
  const int64_t messages = std::atoll(argv[3]);
  const auto status = mode == "receive" ? thinpipe::receive(argv[2], messages) : thinpipe::send(argv[2], messages);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s %s: %s\n", argv[0], argv[1], status.error().message.c_str());
  return 1;
}
