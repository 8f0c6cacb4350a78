// A host that means harm, or is broken: joins by invite as any other, and in one step sends what it should not.
//   harmful_worker INVITE nan|garbage|short STEP
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <limits>

#include "base/result.h"
#include "net/packet.h"
#include "run/join.h"
#include "run/worker/worker.h"

namespace thinpipe {
namespace {

// Where a packet's trailer holds what (docs/wire.md).
constexpr size_t kKindAt = 5, kStepAt = 32;

class HarmfulLink final : public Link {
 public:
  HarmfulLink(std::unique_ptr<Link> link, std::string harm, int64_t step, std::atomic<bool>& done)
      : link_(std::move(link)), harm_(std::move(harm)), step_(step), done_(done) {}

  Status send(std::vector<std::byte> message) override {
    const auto* trailer = message.data() + message.size() - kPacketHeaderBytes;
    int64_t step = 0;
    std::memcpy(&step, trailer + kStepAt, sizeof step);
    const bool forward = trailer[kKindAt] == std::byte{0};
    if (forward && step == step_ && !done_.exchange(true)) spoil(message);
    return link_->send(std::move(message));
  }
  Result<std::vector<std::byte>> receive() override { return link_->receive(); }
  void close(std::string reason) override { link_->close(std::move(reason)); }

 private:
  void spoil(std::vector<std::byte>& message) const {
    const size_t payload = message.size() - kPacketHeaderBytes;
    if (harm_ == "garbage") {
      for (auto& byte : message) byte ^= std::byte{0x5a};
      return;
    }
    if (harm_ == "short") {
      message.erase(message.begin() + static_cast<ptrdiff_t>(payload) - 4,
                    message.begin() + static_cast<ptrdiff_t>(payload));
    } else {
      // fp32 numbers come last.
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(message.data() + payload - sizeof nan, &nan, sizeof nan);
    }
    seal_packet(message);
  }

  std::unique_ptr<Link> link_;
  const std::string harm_;
  const int64_t step_;
  std::atomic<bool>& done_;
};

void run(const std::string& invite_text, const std::string& harm, int64_t step) {
  const auto invite = parse_invite(invite_text).take();
  std::atomic<bool> done = false;
  WorkerOptions options;
  options.coordinator = enrol(invite, look(invite).address, "harm");
  options.folder = join_folder(invite.run);
  options.wrap_link = [&](std::unique_ptr<Link> link) -> std::unique_ptr<Link> {
    return std::make_unique<HarmfulLink>(std::move(link), harm, step, done);
  };
  run_worker(options).take();
}

}  // namespace
}  // namespace thinpipe

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    thinpipe::run(argv[1], argv[2], std::atoll(argv[3]));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "harmful_worker: {}\n", error.what());
    return 1;
  }
}
