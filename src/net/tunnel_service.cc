#include "net/tunnel_service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/units.h"
#include "net/stream_link.h"
#include "net/tls.h"

namespace thinpipe {
namespace {

constexpr auto kLeaveTime = std::chrono::milliseconds(500);

Result<TunnelHello> read_tunnel_hello(const grpc::ServerContextBase& context) {
  TunnelHello hello;
  hello.run = TRY(metadata_text(context, kRunKey));
  hello.boundary = TRY(metadata_number<int64_t>(context, kBoundaryKey));
  hello.epoch = TRY(metadata_number<uint64_t>(context, kEpochKey));
  const auto dials = TRY(metadata_text(context, kDialsKey));
  if (dials != "0" && dials != "1") return Error{fmt::format("{} is '{}', neither 0 nor 1", kDialsKey, dials)};
  hello.dials = dials == "1";
  return hello;
}

bool same_tunnel(const TunnelHello& a, const TunnelHello& b) {
  return a.run == b.run && a.boundary == b.boundary && a.epoch == b.epoch;
}

std::string name_of(const TunnelHello& hello) {
  return fmt::format("the {} end of the tunnel of boundary {}, epoch {}", hello.dials ? "dialling" : "accepting",
                     hello.boundary, hello.epoch);
}

class End;

// What the ends share. Everything about an end happens with the mutex held: none of it waits.
struct Shared {
  const TunnelGate gate;
  const Duration partner_timeout;
  std::mutex mutex;
  std::optional<std::string> shut_down;  // the reason
  std::set<std::shared_ptr<End>> ends;   // whose calls have not ended
};

// One call. gRPC calls the On... functions; it owns nothing, so the end keeps itself alive (in Shared) until OnDone.
class End final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                  public std::enable_shared_from_this<End> {
 public:
  // Shared for the alarms, which may come when all else has gone.
  End(std::shared_ptr<Shared> shared, grpc::CallbackServerContext& context)
      : shared_(std::move(shared)), context_(context) {}

  const TunnelHello& hello() const { return hello_; }
  bool waits() const { return !joined_ && !ended_; }
  bool ended() const { return ended_.has_value(); }

  // What the handler does.
  void begin() {
    const auto hello = read_tunnel_hello(context_);
    const auto allowed = hello ? shared_->gate(hello.value(), caller_of(context_)) : Status{};
    const std::lock_guard lock(shared_->mutex);
    shared_->ends.insert(shared_from_this());
    if (!hello) return end({grpc::StatusCode::INVALID_ARGUMENT, hello.error().message});
    if (!allowed) return end({grpc::StatusCode::PERMISSION_DENIED, one_line(allowed.error().message)});
    if (shared_->shut_down) return end({grpc::StatusCode::UNAVAILABLE, *shared_->shut_down});
    hello_ = hello.value();
    take_place();
  }

  // With the mutex held: this end and its partner.
  void end_both(const std::string& reason) {
    if (partner_) partner_->end({grpc::StatusCode::ABORTED, reason});
    end({grpc::StatusCode::ABORTED, reason});
  }

  void OnReadDone(bool ok) override {
    const std::lock_guard lock(shared_->mutex);
    if (ended_) return;
    if (!ok) return end_both(name_of(hello_) + " is gone");
    const size_t bytes = buffer_.Length();
    if (bytes > kMaxTunnelBufferBytes) {
      return end_both(
          fmt::format("{} sent a buffer of {} bytes, the most is {}", name_of(hello_), bytes, kMaxTunnelBufferBytes));
    }
    partner_->writing_ = true;
    partner_->StartWrite(&buffer_);
  }

  // What has been written is the partner's buffer.
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(shared_->mutex);
    writing_ = false;
    if (ended_) return Finish(*ended_);
    if (!ok) return end_both(name_of(hello_) + " is gone");
    partner_->was_passed_on();
  }

  void OnCancel() override {
    const std::lock_guard lock(shared_->mutex);
    if (!ended_) end_both(name_of(hello_) + " is gone");
  }

  void OnDone() override {
    // Whoever holds the last reference must not do so within the mutex that goes with it.
    const auto self = shared_from_this();
    std::shared_ptr<End> partner;
    const std::lock_guard lock(shared_->mutex);
    alarm_.reset();
    partner.swap(partner_);
    shared_->ends.erase(self);
  }

 private:
  // With the mutex held, all below.
  void take_place() {
    size_t waiting = 0;
    std::shared_ptr<End> partner;
    const auto ends = shared_->ends;
    for (const auto& other : ends) {
      if (other.get() == this || other->ended()) continue;
      if (!same_tunnel(other->hello(), hello_)) {
        waiting += other->waits() ? 1 : 0;
      } else if (other->hello().dials == hello_.dials) {
        other->end_both(fmt::format("a newer {} end of the tunnel of boundary {} took its place",
                                    hello_.dials ? "dialling" : "accepting", hello_.boundary));
      } else if (other->waits()) {
        partner = other;
      }
    }
    if (partner) {
      join(partner);
    } else if (waiting >= TunnelService::kMaxWaiting) {
      end({grpc::StatusCode::RESOURCE_EXHAUSTED, fmt::format("{} ends of tunnels wait already", waiting)});
    } else {
      alarm_after(shared_->partner_timeout, [](End& self) { self.partner_did_not_come(); });
    }
  }

  void partner_did_not_come() {
    if (!waits()) return;
    auto other = hello_;
    other.dials = !other.dials;
    end({grpc::StatusCode::DEADLINE_EXCEEDED,
         fmt::format("{} did not come within {}", name_of(other), format_duration(shared_->partner_timeout))});
  }

  void join(const std::shared_ptr<End>& partner) {
    partner_ = partner;
    partner->partner_ = shared_from_this();
    for (auto* end : {this, partner.get()}) {
      end->joined_ = true;
      end->alarm_.reset();
      end->context_.AddInitialMetadata(kJoinedKey, "1");
      end->StartSendInitialMetadata();
      end->StartRead(&end->buffer_);
    }
  }

  void was_passed_on() {
    const bool was_last = buffer_.Length() == 0;
    buffer_.Clear();
    if (!was_last) return StartRead(&buffer_);
    said_all_ = true;
    if (!partner_->said_all_) return;
    end(grpc::Status::OK);
    partner_->end(grpc::Status::OK);
  }

  void end(const grpc::Status& status) {
    if (ended_) return;
    ended_ = status;
    if (!writing_) return Finish(status);
    // The status can go only behind what is being written, which an end that takes nothing would hold up for ever.
    alarm_after(kLeaveTime, [](End& self) { self.context_.TryCancel(); });
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
  TunnelHello hello_;
  grpc::ByteBuffer buffer_;       // read here, written by the partner
  std::shared_ptr<End> partner_;  // shared until OnDone: gRPC may be writing its buffer
  bool joined_ = false;
  bool writing_ = false;   // the partner's buffer
  bool said_all_ = false;  // and that has been passed on
  std::optional<grpc::Status> ended_;
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace

class TunnelService::Relay final : public grpc::Service {
 public:
  Relay(TunnelGate gate, Duration partner_timeout)
      : shared_(new Shared{.gate = std::move(gate), .partner_timeout = partner_timeout}) {
    using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
    AddMethod(new grpc::internal::RpcServiceMethod(kTunnelMethod, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRawCallback(0, new Handler([this](grpc::CallbackServerContext* context) {
                            const auto end = std::make_shared<End>(shared_, *context);
                            end->begin();
                            return end.get();
                          }));
  }

  void drop(uint64_t before_epoch) {
    const std::lock_guard lock(shared_->mutex);
    const auto ends = shared_->ends;  // ending changes it
    for (const auto& end : ends) {
      if (end->hello().epoch < before_epoch) end->end_both(fmt::format("epoch {} has begun", before_epoch));
    }
  }

  void shutdown(const std::string& reason) {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->shut_down) return;
    shared_->shut_down = one_line(reason);
    const auto ends = shared_->ends;
    for (const auto& end : ends) end->end_both(*shared_->shut_down);
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

TunnelService::TunnelService(TunnelGate gate, Duration partner_timeout)
    : relay_(std::make_unique<Relay>(std::move(gate), partner_timeout)) {}
TunnelService::~TunnelService() = default;

grpc::Service& TunnelService::grpc_service() { return *relay_; }
void TunnelService::drop(uint64_t before_epoch) { relay_->drop(before_epoch); }
void TunnelService::shutdown(const std::string& reason) { relay_->shutdown(reason); }

}  // namespace thinpipe
