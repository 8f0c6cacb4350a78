#include "net/path_probe.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/line.h"
#include "base/units.h"
#include "net/grpc_link.h"
#include "proto/frame.grpc.pb.h"

namespace thinpipe {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kRounds = 5;
constexpr auto kTimePerPart = std::chrono::milliseconds(300);
constexpr size_t kFirstTransferBytes = size_t{4} << 10;  // 4 + 8 + 16 + 32 KiB
constexpr size_t kBytesPerPart = size_t{64} << 10;
constexpr double kShortestTransfer_s = 1e-4;

grpc::ChannelArguments probe_arguments(const std::string& expected_name) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_frame_bytes(kMaxEchoBytes));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a new connection
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (!expected_name.empty()) arguments.SetSslTargetNameOverride(expected_name);
  return arguments;
}

class Prober {
 public:
  Prober(const std::string& address, const std::shared_ptr<grpc::Channel>& channel, Duration timeout)
      : address_(address),
        timeout_(timeout),
        deadline_(std::chrono::system_clock::now() + timeout),
        stub_(wire::Links::NewStub(channel)) {}

  Result<PathFacts> measure() {
    // Connects first, so that the measurement does not include it.
    TRY(echo(0, 0));
    PathFacts facts{.round_trip_s = std::numeric_limits<double>::infinity()};
    const auto start = SteadyClock::now();
    for (int round = 0; round < kRounds && (round == 0 || SteadyClock::now() - start < kTimePerPart); ++round) {
      const double took_s = TRY(echo(0, 0));
      facts.round_trip_s = std::min(facts.round_trip_s, took_s);
    }
    facts.up_bits_per_s = TRY(rate(facts.round_trip_s, [&](size_t bytes) { return echo(bytes, 0); }));
    facts.down_bits_per_s =
        TRY(rate(facts.round_trip_s, [&](size_t bytes) { return echo(0, static_cast<uint32_t>(bytes)); }));
    return facts;
  }

 private:
  // Returns seconds.
  Result<double> echo(size_t payload_bytes, uint32_t answer_bytes) {
    grpc::ClientContext context;
    context.set_deadline(deadline_);
    wire::EchoRequest request;
    request.set_answer_bytes(answer_bytes);
    request.mutable_payload()->resize(payload_bytes);
    wire::EchoReply answer;
    const auto start = SteadyClock::now();
    const auto status = stub_->Echo(&context, request, &answer);
    const double took = seconds(SteadyClock::now() - start);
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return Error{fmt::format("{}: not measured within {}", address_, format_duration(timeout_))};
    }
    if (!status.ok()) return Error{fmt::format("{}: {}", address_, one_line(status.error_message()))};
    if (answer.payload().size() != answer_bytes) {
      return Error{
          fmt::format("{}: an echo of {} bytes, asked for {}", address_, answer.payload().size(), answer_bytes)};
    }
    return took;
  }

  // Uses the last and largest transfer. Those before it open TCP's window; otherwise it would take several round trips.
  template <class Transfer>
  static Result<double> rate(double round_trip_s, const Transfer& transfer) {
    double bits_per_s = 0;
    size_t gone = 0;
    const auto start = SteadyClock::now();
    for (size_t bytes = kFirstTransferBytes; gone + bytes <= kBytesPerPart; bytes *= 2) {
      if (gone > 0 && SteadyClock::now() - start >= kTimePerPart) break;
      const double took_s = TRY(transfer(bytes));
      bits_per_s = 8 * static_cast<double>(bytes) / std::max(took_s - round_trip_s, kShortestTransfer_s);
      gone += bytes;
    }
    return bits_per_s;
  }

  const std::string address_;
  const Duration timeout_;
  const std::chrono::system_clock::time_point deadline_;
  const std::unique_ptr<wire::Links::Stub> stub_;
};

}  // namespace

Result<PathFacts> probe_path(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
                             const std::string& expected_name, Duration timeout) {
  prepare_grpc();
  if (!credentials) credentials = grpc::InsecureChannelCredentials();
  return probe_path(address, grpc::CreateCustomChannel(address, credentials, probe_arguments(expected_name)), timeout);
}

Result<PathFacts> probe_path(const std::string& address, const std::shared_ptr<grpc::Channel>& channel,
                             Duration timeout) {
  return Prober(address, channel, timeout).measure();
}

}  // namespace thinpipe
