#include "text/prepare_line.h"

#include <fmt/format.h>

#include "base/units.h"

namespace thinpipe {
namespace {

constexpr Duration kLiveEvery = std::chrono::milliseconds(100);
constexpr Duration kPlainEvery = std::chrono::seconds(5);
// A rate over less than this says nothing.
constexpr Duration kLeastMeasured = std::chrono::milliseconds(500);

}  // namespace

PrepareLine::~PrepareLine() {
  if (!up_) return;
  fmt::print(out_, "\r\033[K");
  std::fflush(out_);
}

std::string PrepareLine::line(uint64_t done_bytes, uint64_t total_bytes) const {
  std::string text = phase_;
  const auto megabytes = [](uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  if (total_bytes > 0) {
    text += fmt::format(" {:.1f} of {:.1f} MB", megabytes(done_bytes), megabytes(total_bytes));
  } else if (done_bytes > 0) {
    text += fmt::format(" {:.1f} MB", megabytes(done_bytes));
  }
  const Duration took = clock_.now() - phase_start_;
  if (took < kLeastMeasured || done_bytes <= first_bytes_) return text;
  const double rate = megabytes(done_bytes - first_bytes_) / seconds(took);
  text += fmt::format(", {:.1f} MB/s", rate);
  if (total_bytes > done_bytes) {
    const auto left = std::chrono::seconds(static_cast<int64_t>(megabytes(total_bytes - done_bytes) / rate) + 1);
    text += fmt::format(", {} left", format_duration(left));
  }
  return text;
}

void PrepareLine::operator()(std::string_view phase, uint64_t done_bytes, uint64_t total_bytes) {
  const TimePoint now = clock_.now();
  const bool begins = phase != phase_;
  if (begins) {
    phase_ = phase;
    first_bytes_ = done_bytes;
    phase_start_ = now;
  } else if (now - last_print_ < (live_ ? kLiveEvery : kPlainEvery)) {
    return;
  }
  last_print_ = now;
  if (live_) {
    fmt::print(out_, "\r\033[Kdata: {}", line(done_bytes, total_bytes));
    up_ = true;
  } else {
    fmt::print(out_, "data: {}\n", begins ? phase_ : line(done_bytes, total_bytes));
  }
  std::fflush(out_);
}

}  // namespace thinpipe
