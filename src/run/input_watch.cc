#include "run/input_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/units.h"

namespace thinpipe {

InputWatch::InputWatch(int descriptor, Duration most_silence, std::function<void(const std::string&)> on_end)
    : descriptor_(descriptor),
      most_silence_(most_silence),
      on_end_(std::move(on_end)),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { watch(); }) {}

InputWatch::~InputWatch() {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void InputWatch::watch() {
  const auto most_ms = std::chrono::ceil<std::chrono::milliseconds>(most_silence_).count();
  std::array<pollfd, 2> waits{{{descriptor_, POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
  while (true) {
    const int ready = ::poll(waits.data(), waits.size(), static_cast<int>(most_ms));
    if (ready < 0 && errno == EINTR) continue;
    if (waits[1].revents != 0) return;
    if (ready == 0) {
      const auto most_s = std::chrono::duration_cast<std::chrono::seconds>(most_silence_);
      return on_end_(fmt::format("nothing came on standard input for {}", format_duration(most_s)));
    }
    char buffer[256];
    const ssize_t count = ::read(descriptor_, buffer, sizeof buffer);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return on_end_("standard input has ended");
  }
}

}  // namespace thinpipe
