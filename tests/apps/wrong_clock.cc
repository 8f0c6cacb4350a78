// A library to preload: shifts the date and time of a program by WRONG_CLOCK_S seconds, and nothing else. The kernel
// keeps the right time, so a wait until a date is moved back equally.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdlib>
#include <ctime>

namespace {

time_t off_s() {
  const char* text = std::getenv("WRONG_CLOCK_S");
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

// The next library's function of that name.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

timespec right_time(timespec time) {
  time.tv_sec -= off_s();
  return time;
}

using Syscall = long(long, long, long, long, long, long, long);
using CondWait = int(pthread_cond_t*, pthread_mutex_t*, const timespec*);

Syscall* const next_syscall = next<Syscall>("syscall");

}  // namespace

extern "C" {

long syscall(long number, ...) noexcept {
  std::va_list list;
  va_start(list, number);
  std::array<long, 6> words{};
  for (auto& word : words) word = va_arg(list, long);
  va_end(list);
  const auto call = next_syscall != nullptr ? next_syscall : next<Syscall>("syscall");
  timespec until{};
  if (number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME) != 0 && words[3] != 0) {
    until = right_time(*reinterpret_cast<const timespec*>(words[3]));
    words[3] = reinterpret_cast<long>(&until);
  }
  return call(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  static auto* const wait = next<CondWait>("pthread_cond_timedwait");
  constexpr time_t kLongestUptime_s = 1'000'000'000;  // more is a date, not an uptime
  const auto moved = until->tv_sec > kLongestUptime_s ? right_time(*until) : *until;
  return wait(condition, mutex, &moved);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto code = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
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
