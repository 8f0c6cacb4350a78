// A library to preload: the date and time of a program are off by WRONG_CLOCK_S seconds, and nothing else is.
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

namespace {

time_t off_s() {
  const char* text = std::getenv("WRONG_CLOCK_S");
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto code = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += off_s();
  return code;
}

time_t time(time_t* place) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (place != nullptr) *place = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(timeval* place, void*) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *place = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}
}
