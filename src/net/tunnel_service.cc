#include "net/tunnel_service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/line.h"
#include "base/units.h"

namespace thinpipe {
namespace {

constexpr auto kEndLeaveTime = std::chrono::milliseconds(500);

bool same_tunnel(const wire::Hello& a, const wire::Hello& b) {
  return a.run() == b.run() && a.boundary() == b.boundary() && a.epoch() == b.epoch();
}

const char* side_of(bool dials) { return dials ? "dialling" : "accepting"; }

std::string name_of(const wire::Hello& hello, bool dials) {
  return fmt::format("the {} end of the tunnel of boundary {}, epoch {}", side_of(dials), hello.boundary(),
                     hello.epoch());
}

}  // namespace

// What the ends share. Everything about an end happens with the mutex held; nothing waits.
struct TunnelService::Shared {
  const TunnelGate gate;
  const Duration partner_timeout;
  const Duration hello_time;
  std::mutex mutex;
  std::optional<std::string> shut_down;    // the reason
  std::vector<std::shared_ptr<End>> ends;  // whose calls have not ended, in order of arrival
};

// One call. gRPC calls the On... functions but owns nothing, so the end keeps itself alive (in Shared) until OnDone.
class TunnelService::End final : public grpc::ServerBidiReactor<wire::Frame, wire::Frame>,
                                 public std::enable_shared_from_this<End> {
 public:
  End(std::shared_ptr<Shared> shared, grpc::CallbackServerContext& context)
      : shared_(std::move(shared)), context_(context) {}

  // Called by the handler.
  void begin() {
    const std::lock_guard lock(shared_->mutex);
    shared_->ends.push_back(shared_from_this());
    if (shared_->shut_down) return end({grpc::StatusCode::UNAVAILABLE, *shared_->shut_down});
    end_oldest_if_too_many_open();
    alarm_after(shared_->hello_time, [](End& self) { self.hello_did_not_come(); });
    StartRead(&frame_);
  }

  // Ends this end and its partner. With the mutex held.
  void end_both(const std::string& reason) {
    if (partner_) partner_->end({grpc::StatusCode::ABORTED, reason});
    end({grpc::StatusCode::ABORTED, reason});
  }
  bool is_before(uint64_t epoch) const { return hello_ && hello_->epoch() < epoch; }

  void OnReadDone(bool ok) override {
    // The first frame goes to the gate, which takes other locks; nobody else reads or writes the frame.
    const bool first = !hello_;
    const bool is_hello = ok && frame_.has_hello();
    const auto allowed = first && is_hello ? shared_->gate(frame_.hello(), caller_of(context_)) : Status{};
    const std::lock_guard lock(shared_->mutex);
    if (ended_) return;
    if (!first) return pass_on(ok);
    if (!is_hello) return end({grpc::StatusCode::INVALID_ARGUMENT, "the call's first frame is not a hello"});
    if (!allowed) return end({grpc::StatusCode::PERMISSION_DENIED, one_line(allowed.error().message)});
    hello_ = std::move(*frame_.mutable_hello());
    take_place();
  }

  // The frame was this end's greeting or the partner's frame.
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(shared_->mutex);
    writing_ = false;
    if (ended_) return Finish(*ended_);
    if (!ok) return end_both(name() + " is gone");
    if (!std::exchange(greeted_, true)) return partner_->StartRead(&partner_->frame_);
    partner_->was_passed_on();
  }

  void OnCancel() override {
    const std::lock_guard lock(shared_->mutex);
    if (!ended_) end_both(name() + " is gone");
  }

  void OnDone() override {
    // Do not drop the last reference while holding the mutex: the mutex would go with it.
    const auto self = shared_from_this();
    std::shared_ptr<End> partner;
    const std::lock_guard lock(shared_->mutex);
    alarm_.reset();
    partner.swap(partner_);
    std::erase(shared_->ends, self);
  }

 private:
  // Call everything below with the mutex held.
  bool opens() const { return !hello_ && !ended_; }
  bool waits() const { return hello_ && !partner_ && !ended_; }
  std::string name() const { return hello_ ? name_of(*hello_, hello_->dials()) : "an end of a tunnel"; }

  void end_oldest_if_too_many_open() {
    const auto opens = [](const auto& end) { return end->opens(); };
    if (std::count_if(shared_->ends.begin(), shared_->ends.end(), opens) <= static_cast<ptrdiff_t>(kMaxOpening)) return;
    const auto oldest = *std::find_if(shared_->ends.begin(), shared_->ends.end(), opens);
    oldest->end({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls have not said yet whose they are"});
  }

  void hello_did_not_come() {
    if (opens()) end({grpc::StatusCode::DEADLINE_EXCEEDED, "no hello within " + format_duration(shared_->hello_time)});
  }

  void take_place() {
    size_t waiting = 0;
    std::shared_ptr<End> partner;
    const auto ends = shared_->ends;  // ending changes it
    for (const auto& other : ends) {
      if (other.get() == this || !other->hello_ || other->ended_) continue;
      if (!same_tunnel(*other->hello_, *hello_)) {
        waiting += other->waits() ? 1 : 0;
      } else if (other->hello_->dials() == hello_->dials()) {
        other->end_both(fmt::format("a newer {} end of the tunnel of boundary {} took its place",
                                    side_of(hello_->dials()), hello_->boundary()));
      } else if (other->waits()) {
        partner = other;
      }
    }
    if (partner) {
      join(partner);
    } else if (waiting >= kMaxWaiting) {
      end({grpc::StatusCode::RESOURCE_EXHAUSTED, fmt::format("{} ends of tunnels wait already", waiting)});
    } else {
      alarm_after(shared_->partner_timeout, [](End& self) { self.partner_did_not_come(); });
    }
  }

  void partner_did_not_come() {
    if (!waits()) return;
    end({grpc::StatusCode::DEADLINE_EXCEEDED,
         fmt::format("{} did not come within {}", name_of(*hello_, !hello_->dials()),
                     format_duration(shared_->partner_timeout))});
  }

  void join(const std::shared_ptr<End>& partner) {
    partner_ = partner;
    partner->partner_ = shared_from_this();
    for (auto* end : {this, partner.get()}) {
      end->alarm_.reset();
      end->greeting_.mutable_accepted();
      end->write(end->greeting_);
    }
  }

  void write(const wire::Frame& frame) {
    writing_ = true;
    StartWrite(&frame);
  }

  // Passes on what this end has sent.
  void pass_on(bool ok) {
    if (!ok) return end_both(name() + " is gone");
    if (frame_.what_case() != wire::Frame::kTunnelled) return end_both(name() + " sent a frame of another kind");
    const size_t bytes = frame_.tunnelled().size();
    if (bytes > kMaxTunnelBytes) {
      return end_both(fmt::format("{} sent a piece of {} bytes, the most is {}", name(), bytes, kMaxTunnelBytes));
    }
    partner_->write(frame_);
  }

  void was_passed_on() {
    if (!frame_.tunnelled().empty()) return StartRead(&frame_);
    said_all_ = true;
    if (!partner_->said_all_) return;
    end(grpc::Status::OK);
    partner_->end(grpc::Status::OK);
  }

  void end(const grpc::Status& status) {
    if (ended_) return;
    ended_ = status;
    if (!writing_) return Finish(status);
    // The status can go out only after the write under way, which an end that reads nothing would block forever.
    alarm_after(kEndLeaveTime, [](End& self) { self.context_.TryCancel(); });
  }

  void alarm_after(Duration time, void (*what)(End&)) {
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + time, [weak = weak_from_this(), what](bool rang) {
      const auto self = weak.lock();
      if (!rang || !self) return;
      const std::lock_guard lock(self->shared_->mutex);
      if (self->alarm_) what(*self);
    });
  }

  const std::shared_ptr<Shared> shared_;
  grpc::CallbackServerContext& context_;
  std::optional<wire::Hello> hello_;  // set once
  wire::Frame greeting_;
  wire::Frame frame_;             // read here, written by the partner
  std::shared_ptr<End> partner_;  // shared until OnDone: gRPC may be writing its frame
  bool writing_ = false;          // the greeting, or the partner's frame
  bool greeted_ = false;
  bool said_all_ = false;  // and the partner has it
  std::optional<grpc::Status> ended_;
  std::unique_ptr<grpc::Alarm> alarm_;
};

TunnelService::TunnelService(TunnelGate gate, Duration partner_timeout, Duration hello_time)
    : shared_(new Shared{.gate = std::move(gate), .partner_timeout = partner_timeout, .hello_time = hello_time}) {}
TunnelService::~TunnelService() = default;

grpc::ServerBidiReactor<wire::Frame, wire::Frame>* TunnelService::Join(grpc::CallbackServerContext* context) {
  const auto end = std::make_shared<End>(shared_, *context);
  end->begin();
  return end.get();
}

void TunnelService::drop(uint64_t before_epoch) {
  const std::lock_guard lock(shared_->mutex);
  const auto ends = shared_->ends;  // ending changes it
  for (const auto& end : ends) {
    if (end->is_before(before_epoch)) end->end_both(fmt::format("epoch {} has begun", before_epoch));
  }
}

void TunnelService::shutdown(const std::string& reason) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->shut_down) return;
  shared_->shut_down = one_line(reason);
  const auto ends = shared_->ends;
  for (const auto& end : ends) end->end_both(*shared_->shut_down);
}

}  // namespace thinpipe
