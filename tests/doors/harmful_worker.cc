// A malicious or broken host: joins by invite like any other, and sends bad data in one step.
//   harmful_worker INVITE nan|garbage|short|tokens STEP
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <limits>

#include "base/result.h"
#include "net/link.h"
#include "run/join.h"
#include "run/worker/worker.h"

namespace thinpipe {
namespace {

class HarmfulLink final : public Link {
 public:
  HarmfulLink(std::unique_ptr<Link> link, std::string harm, int64_t step, std::atomic<bool>& done)
      : link_(std::move(link)), harm_(std::move(harm)), step_(step), done_(done) {}

  bool write(wire::Frame frame) override {
    const auto& packet = frame.packet();
    const bool is_the_one = frame.has_packet() && packet.kind() == wire::Packet::FORWARD && packet.step() == step_;
    if (is_the_one && !done_.exchange(true)) spoil(frame);
    return link_->write(std::move(frame));
  }
  void end_writing() override { link_->end_writing(); }
  bool read(wire::Frame& frame) override { return link_->read(frame); }
  void cancel() override { link_->cancel(); }
  std::string finish() override { return link_->finish(); }

 private:
  void spoil(wire::Frame& frame) const {
    auto& payload = *frame.mutable_packet()->mutable_payload();
    if (harm_ == "garbage") {
      frame.set_tunnelled("not a packet");
    } else if (harm_ == "tokens") {
      payload[8] = static_cast<char>(payload[8] ^ 1);  // the first id, after the lengths of two sequences
    } else if (harm_ == "short") {
      payload.resize(payload.size() - 4);
    } else {
      // fp32 values come last.
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(payload.data() + payload.size() - sizeof nan, &nan, sizeof nan);
    }
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
