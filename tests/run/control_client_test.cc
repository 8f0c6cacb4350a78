// A worker's line to a coordinator that misbehaves: a real server over TLS that never reads.
#include "run/worker/control_client.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <future>

#include "net/certificates.h"
#include "net/grpc_link.h"
#include "net/tls.h"
#include "run/coordinator/admission.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

// Accepts a worker's stream and then neither reads nor answers, until the call is cancelled.
class DeafCoordinator final : public control::Coordinator::Service {
 public:
  grpc::Status Attend(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<control::ToWorker, control::FromWorker>* stream) override {
    control::FromWorker hello;
    stream->Read(&hello);
    const auto ended = ended_.get_future();
    while (!context->IsCancelled() && ended.wait_for(std::chrono::milliseconds(10)) == std::future_status::timeout) {
    }
    return grpc::Status::OK;
  }
  void end() { ended_.set_value(); }

 private:
  std::promise<void> ended_;
};

TEST(ControlClient, Stop_WhileTheCoordinatorTakesNoMessages_EndsTheBlockedWrite) {
  const test::ScratchFolder folder;
  const auto authority = CertificateAuthority::open_or_create(folder / "authority", "a run").take();
  for (const char* name : {kCoordinatorName, kOperatorName}) make_identity(authority, name, folder / name).take();
  prepare_grpc();
  DeafCoordinator coordinator;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", tls_server(load_identity(folder / kCoordinatorName).take(), false), &port);
  builder.RegisterService(&coordinator);
  const auto server = builder.BuildAndStart();

  ControlClient client(coordinator_access({fmt::format("127.0.0.1:{}", port)}, folder / kOperatorName));
  std::promise<void> connected;
  client.start(std::chrono::hours(1), {.connected =
                                           [&] {
                                             connected.set_value();
                                             return control::FromWorker();
                                           },
                                       .disconnected = [] { return false; },
                                       .received = [](const control::ToWorker&) {},
                                       .tick = [] {}});
  connected.get_future().wait();
  // More than any window of flow control: one of these writes blocks.
  std::promise<void> all_said;
  std::thread talker([&] {
    control::FromWorker message;
    message.mutable_trouble()->set_reason(std::string(1 << 20, 'x'));
    for (int i = 0; i < 64; ++i) client.say(message);
    all_said.set_value();
  });
  ASSERT_EQ(all_said.get_future().wait_for(std::chrono::seconds(1)), std::future_status::timeout) << "nothing blocked";
  auto stopped = std::async(std::launch::async, [&] { client.stop(); });
  constexpr auto kPatience = std::chrono::minutes(2);
  EXPECT_EQ(stopped.wait_for(kPatience), std::future_status::ready) << "stop() waits for the blocked write";
  coordinator.end();  // so that a failure does not hang
  server->Shutdown();
  talker.join();
}

}  // namespace
}  // namespace thinpipe
