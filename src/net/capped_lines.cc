#include "net/capped_lines.h"

#include <algorithm>
#include <condition_variable>
#include <utility>
#include <vector>

#include "base/log.h"
#include "net/addresses.h"

namespace thinpipe {
namespace {

constexpr auto kFarConnectTime = std::chrono::seconds(5);
constexpr uint64_t kHeaderBytes = 52, kPacketBytes = 1448;
constexpr size_t kLeastPiece = 1448, kMostPiece = 1 << 20;
constexpr auto kTurn = std::chrono::milliseconds(20);
// Anybody on this machine may connect to a way.
constexpr size_t kMostPairs = 128;
// What waits in a socket was received, but not passed on: it must be little beside a minute of the rate.
constexpr int kLeastBuffer = 16 << 10, kMostBuffer = 4 << 20, kBufferParts = 8;

// An eighth of a second at the rate; 0: the system's choice.
int buffer_of(uint64_t bits_per_s) {
  if (bits_per_s == 0) return 0;
  return static_cast<int>(std::clamp<uint64_t>(bits_per_s / 8 / kBufferParts, kLeastBuffer, kMostBuffer));
}

}  // namespace

TimePoint CapPlan::pass(TimePoint now, uint64_t bytes) {
  if (bits_per_s_ == 0) return now;
  if (now - free_ > kLate) free_ = now;
  free_ += Duration(static_cast<int64_t>(8e9 * static_cast<double>(bytes) / static_cast<double>(bits_per_s_)));
  return free_;
}

size_t CapPlan::piece(TimePoint now) const {
  if (bits_per_s_ == 0) return kMostPiece;
  const auto behind = now > free_ && now - free_ <= kLate ? now - free_ : Duration{};
  const double bytes = static_cast<double>(bits_per_s_) / 8 * seconds(kTurn + behind);
  return std::clamp(static_cast<size_t>(bytes), kLeastPiece, kMostPiece);
}

uint64_t bytes_on_line(uint64_t payload) {
  return payload + kHeaderBytes * ((payload + kPacketBytes - 1) / kPacketBytes);
}

uint64_t acknowledgement_bytes(uint64_t payload) {
  return kHeaderBytes * ((payload + 2 * kPacketBytes - 1) / (2 * kPacketBytes));
}

// ---- ways ----

CappedLines::Way::Way(CappedLines& lines, LocalSocket listener, const std::string& leads_to)
    : listener_(std::move(listener)), address_(listener_.address()) {
  thread_ = std::thread([this, &lines, leads_to] {
    while (auto near = listener_.accept()) lines.begin(std::move(near).take(), leads_to);
  });
}

CappedLines::Way::~Way() {
  listener_.interrupt();
  thread_.join();
}

Result<std::unique_ptr<CappedLines::Way>> CappedLines::way_to(const std::string& to) {
  TRY(check_address(to));
  auto listener = TRY(LocalSocket::listen(buffer_of(caps_.up)));
  return std::unique_ptr<Way>(new Way(*this, std::move(listener), to));
}

// ---- connections ----

CappedLines::CappedLines(const LineCaps& caps) : caps_(caps), up_(caps.up), down_(caps.down) {}

CappedLines::~CappedLines() {
  stop_.request_stop();
  for (auto& pair : pairs_) {
    {
      const std::lock_guard lock(pair.mutex);
      pair.near.interrupt();
      pair.far.interrupt();
    }
    pair.thread.join();
  }
}

void CappedLines::begin(LocalSocket near, const std::string& to) {
  const std::lock_guard lock(mutex_);
  for (auto pair = pairs_.begin(); pair != pairs_.end();) {
    if (!pair->over) {
      ++pair;
      continue;
    }
    pair->thread.join();
    pair = pairs_.erase(pair);
  }
  if (pairs_.size() >= kMostPairs) return;  // hangs up
  auto& pair = pairs_.emplace_back();
  pair.near = std::move(near);
  pair.thread = std::thread([this, &pair, to] {
    serve(pair, to);
    pair.over = true;
  });
}

void CappedLines::serve(Pair& pair, const std::string& to) {
  auto far = LocalSocket::connect(to, kFarConnectTime, buffer_of(caps_.down));
  {
    const std::lock_guard lock(pair.mutex);
    if (!far || stop_.stop_requested()) {
      if (!far) log_debug("a capped line: {}", far.error().message);
      pair.near = LocalSocket();
      return;
    }
    pair.far = std::move(far).take();
  }
  std::thread outward([&] { move(pair, true); });
  move(pair, false);
  outward.join();
  const std::lock_guard lock(pair.mutex);
  pair.near = LocalSocket();
  pair.far = LocalSocket();
}

void CappedLines::move(Pair& pair, bool outward) {
  auto& from = outward ? pair.near : pair.far;
  auto& to = outward ? pair.far : pair.near;
  auto& own = outward ? up_ : down_;
  auto& other = outward ? down_ : up_;
  std::vector<std::byte> room;
  while (true) {
    room.resize(piece(own));
    const auto got = from.receive(room);
    if (!got) break;
    if (got.value() == 0) {
      to.end_sending();
      // gRPC never ends one direction only, and the other end may be gone without a word.
      if (outward) pair.far.interrupt();
      return;
    }
    if (!wait_for(own, other, got.value()) || !to.send(std::span(room).first(got.value()))) break;
  }
  from.interrupt();  // the other direction may wait there
  to.interrupt();
}

size_t CappedLines::piece(const CapPlan& plan) {
  const std::lock_guard lock(mutex_);
  return plan.piece(clock_.now());
}

bool CappedLines::wait_for(CapPlan& own, CapPlan& other, uint64_t payload) {
  TimePoint passed;
  {
    const std::lock_guard lock(mutex_);
    const auto now = clock_.now();
    passed = own.pass(now, bytes_on_line(payload));
    other.pass(now, acknowledgement_bytes(payload));
  }
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any stopped;
  stopped.wait_until(lock, stop_.get_token(), passed, [] { return false; });
  return !stop_.stop_requested();
}

}  // namespace thinpipe
