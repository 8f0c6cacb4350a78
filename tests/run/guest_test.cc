// What the owner of a machine allows: reading and keeping the options, the hours and the power supply, and the unit of
// the service. Time and power supply are made up.
#include "run/guest.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <map>
#include <thread>

#include "base/files.h"
#include "run/lingering.h"
#include "run/presence.h"
#include "run/service_unit.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;

void write(const std::filesystem::path& path, const std::string& text) {
  make_directories(path.parent_path()).take();
  write_file_atomically(path, text).take();
}

std::string refusal(const GuestOptions& options) {
  const auto limits = limits_of(options);
  return limits ? "accepted" : limits.error().message;
}

// ---- options ----

TEST(GuestOptions, AreRead) {
  const auto limits = limits_of({.threads = "2",
                                 .nice = "10",
                                 .max_memory = "2GiB",
                                 .max_upload = "5mbit",
                                 .max_download = "unlimited",
                                 .hours = "22:00-7:30",
                                 .on_battery = "leave"})
                          .take();
  EXPECT_EQ(limits.threads, 2);
  EXPECT_EQ(limits.nice, 10);
  EXPECT_EQ(limits.max_memory_bytes, uint64_t{2} << 30);
  EXPECT_EQ(limits.max_upload_bits_per_s, 5'000'000U);
  EXPECT_EQ(limits.max_download_bits_per_s, 0U);
  EXPECT_EQ(limits.hours->from_min, 22 * 60);
  EXPECT_EQ(limits.hours->to_min, 7 * 60 + 30);
  EXPECT_TRUE(limits.leave_on_battery);
  EXPECT_TRUE(limits.may_leave());
  EXPECT_FALSE(limits_of({}).take().may_leave());
  EXPECT_FALSE(limits_of({.hours = "always"}).take().may_leave());
  EXPECT_EQ(limits_of({.hours = "06:00-24:00"}).take().hours->to_min, 0);
}

TEST(GuestOptions, ThatAreWrong_AreRefusedByName) {
  EXPECT_EQ(refusal({.threads = "-1"}), "--threads \"-1\": needs a whole number from 0 to 1024");
  EXPECT_EQ(refusal({.nice = "20"}), "--nice \"20\": needs a whole number from 0 to 19");
  EXPECT_EQ(refusal({.nice = "3x"}), "--nice \"3x\": needs a whole number from 0 to 19");
  EXPECT_EQ(refusal({.max_memory = "2"}),
            "--max-memory \"2\": needs a size of at least 16MiB, like 2GB or 1500MiB, or 0");
  EXPECT_EQ(refusal({.max_upload = "fast"}), "--max-upload \"fast\": needs a rate like 5mbit or 800kbit, or unlimited");
  EXPECT_EQ(refusal({.max_download = "1kbit"}),
            "--max-download \"1kbit\": needs at least 256kbit, or neighbours would think that this machine is gone");
  for (const std::string text : {"22-7", "22:00", "22:00-", "22:60-07:00", "25:00-07:00", "24:01-07:00", "2200-0700",
                                 "22:00-07:00-08:00", "-1:00-07:00", "22:0-07:00", ":00-07:00", "1:1:1-2:00"}) {
    EXPECT_EQ(refusal({.hours = text}),
              "--hours \"" + text + "\": needs two times of the day like 22:00-07:00, or always");
  }
  EXPECT_EQ(refusal({.hours = "7:00-07:00"}),
            "--hours \"7:00-07:00\": begins when it ends; write always for the whole day");
  EXPECT_EQ(refusal({.on_battery = "run"}), "--on-battery \"run\": is not one of leave, stay");
}

TEST(GuestOptions, AreKept_AndThoseGivenAgainWin) {
  const ScratchFolder folder;
  EXPECT_EQ(describe(kept_guest_options(folder.path()).take()), "");
  keep_guest_options(folder.path(), {}).take();
  EXPECT_EQ(folder.file_count(), 0U) << "nothing to keep";
  keep_guest_options(folder.path(), {.nice = "5", .hours = "22:00-07:00"}).take();
  const auto merged = merged_guest_options(folder.path(), {.threads = "1", .hours = "always"}).take();
  EXPECT_EQ(describe(merged), "threads 1, nice 5, hours always");
  keep_guest_options(folder.path(), merged).take();
  EXPECT_EQ(describe(kept_guest_options(folder.path()).take()), "threads 1, nice 5, hours always");
  EXPECT_FALSE(merged_guest_options(folder.path(), {.nice = "99"}).ok());
}

TEST(GuestOptions, DamagedFile_IsRefusedByName) {
  const ScratchFolder folder;
  for (const std::string text : {"", "[]", "{\"nice\": 5}", "{\"nice\": \"99\"}", "{\"nice\": \"5\""}) {
    write(folder / "guest.json", text);
    const auto kept = kept_guest_options(folder.path());
    ASSERT_FALSE(kept.ok()) << text;
    EXPECT_NE(kept.error().message.find("guest.json"), std::string::npos) << kept.error().message;
  }
}

TEST(GuestThreads, AreTheFewerOfWhatTheRunWantsAndTheOwnerAllows) {
  EXPECT_EQ(threads_within(4, 0), 4);
  EXPECT_EQ(threads_within(0, 0), 0);
  EXPECT_EQ(threads_within(4, 2), 2);
  EXPECT_EQ(threads_within(1, 2), 1);
  EXPECT_EQ(threads_within(0, 1), 1);
  EXPECT_EQ(threads_within(0, 1000), std::max(1U, std::thread::hardware_concurrency()));
}

// In a process of its own, because the limits stay.
TEST(GuestLimits, HoldForTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    be_nice(7);
    use_cores(1);
    cpu_set_t allowed;
    const bool fine = ::getpriority(PRIO_PROCESS, 0) >= 7 && ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
                      CPU_COUNT(&allowed) == 1;
    ::_exit(fine ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// ---- hours ----

// Central Europe, whatever this machine knows of time zones: summer time from the last Sunday of March, 2:00, to the
// last of October, 3:00.
class Hours : public ::testing::Test {
 protected:
  Hours() {
    ::setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    ::tzset();
  }
  ~Hours() override {
    ::unsetenv("TZ");
    ::tzset();
  }

  // The time in UTC; in winter the clock on the wall is an hour ahead of it.
  static std::time_t utc(int year, int month, int day, int hour, int minute) {
    std::tm parts{};
    parts.tm_year = year - 1900;
    parts.tm_mon = month - 1;
    parts.tm_mday = day;
    parts.tm_hour = hour;
    parts.tm_min = minute;
    return ::timegm(&parts);
  }
  static bool here(std::time_t now, const std::string& hours) {
    return decide_presence(now, Power::kMains, limits_of({.hours = hours}).take()).here;
  }
  // What the hours say every minute from `from` on, as "+30 -60": minutes here, minutes not here.
  static std::string course(std::time_t from, int minutes, const std::string& hours) {
    std::string text;
    bool now_here = here(from, hours);
    int length = 0;
    for (int i = 0; i <= minutes; ++i, ++length) {
      const bool next = i < minutes && here(from + i * 60, hours);
      if (i < minutes && next == now_here) continue;
      text += fmt::format("{}{}{}", text.empty() ? "" : " ", now_here ? '+' : '-', length);
      length = 0;
      now_here = next;
    }
    return text;
  }
};

TEST_F(Hours, BeginAndEndOnTheMinute) {
  EXPECT_EQ(course(utc(2026, 1, 10, 7, 0), 24 * 60, "09:00-17:30"), "-60 +510 -870");
}

TEST_F(Hours, SpanMidnight) {
  EXPECT_EQ(course(utc(2026, 1, 10, 20, 0), 24 * 60, "22:00-07:00"), "-60 +540 -840");
  EXPECT_TRUE(here(utc(2026, 1, 10, 22, 59), "22:00-00:00"));
  EXPECT_FALSE(here(utc(2026, 1, 10, 23, 0), "22:00-00:00"));
}

// 29 March 2026: at 2:00 the clock goes to 3:00, which is 1:00 UTC.
TEST_F(Hours, ThatTheChangeToSummerTimeSkips_EndOrBeginAtTheChange) {
  const auto midnight = utc(2026, 3, 28, 23, 0);
  EXPECT_EQ(course(midnight, 240, "22:00-02:30"), "+120 -120");
  EXPECT_EQ(course(midnight, 240, "02:30-07:00"), "-120 +120");
  EXPECT_EQ(course(midnight, 240, "02:15-02:45"), "-240") << "the clock never shows these";
  EXPECT_EQ(course(midnight, 480, "22:00-07:00"), "+360 -120") << "an hour shorter";
}

// 25 October 2026: at 3:00 summer time the clock goes back to 2:00, which is 1:00 UTC.
TEST_F(Hours, ThatAreOver_StayOverWhenTheClockIsSetBack) {
  const auto midnight = utc(2026, 10, 24, 22, 0);
  EXPECT_EQ(course(midnight, 300, "22:00-02:30"), "+150 -150");
  EXPECT_EQ(course(midnight, 300, "02:30-07:00"), "-150 +150");
  EXPECT_EQ(course(midnight, 540, "22:00-07:00"), "+480 -60") << "an hour longer";
}

TEST_F(Hours, DecisionSaysWhy) {
  const auto limits = limits_of({.hours = "22:00-07:00", .on_battery = "leave"}).take();
  EXPECT_EQ(decide_presence(utc(2026, 1, 10, 11, 31), Power::kMains, limits).why,
            "it is 12:31: this machine takes part from 22:00 to 07:00");
  EXPECT_EQ(decide_presence(utc(2026, 1, 10, 22, 5), Power::kMains, limits).why,
            "it is 23:05: this machine takes part until 07:00");
  const auto away = decide_presence(utc(2026, 1, 10, 22, 5), Power::kBattery, limits);
  EXPECT_FALSE(away.here);
  EXPECT_EQ(away.why, "this machine runs on battery; it comes back when it is plugged in");
  EXPECT_TRUE(
      decide_presence(utc(2026, 1, 10, 11, 31), Power::kBattery, limits_of({.on_battery = "stay"}).take()).here);
}

// ---- power ----

struct Supplies {
  void add(const std::string& name, const std::map<std::string, std::string>& facts) const {
    for (const auto& [fact, value] : facts) write(folder / name / fact, value + "\n");
  }
  Power power() const { return read_power(folder.path()); }
  ScratchFolder folder;
};

TEST(PowerSupply, LaptopOnMainsAndOnBattery) {
  const Supplies laptop;
  laptop.add("AC", {{"type", "Mains"}, {"online", "1"}});
  laptop.add("BAT0", {{"type", "Battery"}, {"status", "Charging"}});
  EXPECT_EQ(laptop.power(), Power::kMains);
  laptop.add("AC", {{"online", "0"}});
  EXPECT_EQ(laptop.power(), Power::kBattery) << "whatever the battery says of itself";
  laptop.add("BAT0", {{"status", "Discharging"}});
  EXPECT_EQ(laptop.power(), Power::kBattery);
  laptop.add("AC", {{"online", "1"}});
  EXPECT_EQ(laptop.power(), Power::kMains) << "a weak charger";
}

TEST(PowerSupply, WithoutMainsEntry_TheBatteryDecides) {
  const Supplies tablet;
  tablet.add("battery", {{"type", "Battery"}, {"status", "Full"}});
  EXPECT_EQ(tablet.power(), Power::kMains);
  tablet.add("battery", {{"status", "Discharging"}});
  EXPECT_EQ(tablet.power(), Power::kBattery);
  tablet.add("port", {{"type", "USB_PD"}, {"online", "1"}});
  EXPECT_EQ(tablet.power(), Power::kMains);
}

TEST(PowerSupply, MachineWithoutBattery_IsOnMains) {
  const Supplies desktop;
  EXPECT_EQ(desktop.power(), Power::kMains);
  EXPECT_EQ(read_power(desktop.folder / "none"), Power::kMains);
  desktop.add("mouse", {{"type", "Battery"}, {"scope", "Device"}, {"status", "Discharging"}});
  EXPECT_EQ(desktop.power(), Power::kMains);
  desktop.add("odd", {{"online", "0"}});
  EXPECT_EQ(desktop.power(), Power::kMains);
}

// ---- breaks ----

TEST(PresenceWatch, LeavesOnBattery_AndWaitsForMains) {
  const Supplies laptop;
  laptop.add("AC", {{"type", "Mains"}, {"online", "1"}});
  laptop.add("BAT0", {{"type", "Battery"}, {"status", "Discharging"}});
  const auto limits = limits_of({.on_battery = "leave"}).take();
  const PresenceSources sources{.power = laptop.folder.path(), .every = std::chrono::milliseconds(1)};
  const std::stop_source person;
  std::promise<std::string> left, waited;
  PresenceWatch watch(limits, sources, person.get_token(), [&](const std::string& why) { left.set_value(why); });
  EXPECT_FALSE(watch.leave().stop_requested());
  laptop.add("AC", {{"online", "0"}});
  EXPECT_NE(left.get_future().get().find("on battery"), std::string::npos);
  std::promise<void> leaving;
  const std::stop_callback on_leave(watch.leave(), [&] { leaving.set_value(); });
  leaving.get_future().get();
  EXPECT_TRUE(watch.is_break());
  auto back = std::async(std::launch::async, [&] {
    return wait_until_present(limits, sources, person.get_token(),
                              [&](const std::string& why) { waited.set_value(why); });
  });
  EXPECT_NE(waited.get_future().get().find("on battery"), std::string::npos);
  laptop.add("AC", {{"online", "1"}});
  EXPECT_TRUE(back.get());
}

TEST(PresenceWatch, PersonWhoLeaves_IsNoBreak) {
  std::stop_source person;
  const PresenceWatch watch(limits_of({.hours = "00:00-23:59"}).take(), {.now = [] { return std::time_t{3600 * 12}; }},
                            person.get_token(), [](const std::string& why) { ADD_FAILURE() << why; });
  person.request_stop();
  EXPECT_TRUE(watch.leave().stop_requested());
  EXPECT_FALSE(watch.is_break());
  const Supplies none;
  EXPECT_FALSE(wait_until_present({}, {}, person.get_token(), [](const std::string&) {}));
}

TEST(PresenceFile, IsOfALivingProcess) {
  const ScratchFolder folder;
  EXPECT_FALSE(read_presence(folder.path()));
  write_presence(folder.path(), "takes part").take();
  EXPECT_EQ(read_presence(folder.path()), "takes part");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  for (const auto& text :
       {fmt::format("{{\"pid\": {}, \"state\": \"takes part\"}}", child), std::string("{\"pid\": -1}"),
        std::string("{}"), std::string("[1"), std::string("{\"pid\": \"1\"}")}) {
    write(folder / "presence.json", text);
    EXPECT_FALSE(read_presence(folder.path())) << text;
  }
}

// ---- service ----

TEST(Lingering, IsReadFromWhatLoginctlPrints) {
  EXPECT_EQ(lingering_in("Linger=yes\n"), Lingering::kOn);
  EXPECT_EQ(lingering_in("Linger=no\n"), Lingering::kOff);
  EXPECT_EQ(lingering_in("Failed to get user: User ID 1000 is not logged in or lingering\n"), Lingering::kOff);
  EXPECT_EQ(lingering_in("System has not been booted with systemd as init system\n"), Lingering::kUnknown);
  EXPECT_EQ(lingering_in(std::nullopt), Lingering::kUnknown);
}

ServiceUnit some_unit() {
  return {.program = "/opt/odd place/100%/thin$pipe",
          .run = "3f2a91ab44aa",
          .folder = "/home/a b/100%/joined/3f2a91ab44aa",
          .name = "my $attic\\\"",
          .data = "/home/a b/100%"};
}

TEST(ServiceUnit, HoldsNoInviteAndQuotesOddNames) {
  const auto text = unit_text(some_unit());
  for (const std::string line : {"ExecStart=\"/opt/odd place/100%%/thin$pipe\" join - --name \"my $$attic\\\\\\\"\"",
                                 "StandardInput=file:/home/a b/100%%/joined/3f2a91ab44aa/invite",
                                 "Environment=\"THINPIPE_DATA_DIR=/home/a b/100%%\"", "KillSignal=SIGTERM",
                                 "TimeoutStopSec=15min", "StandardOutput=journal", "WantedBy=default.target"}) {
    EXPECT_NE(("\n" + text).find("\n" + line + "\n"), std::string::npos) << line << "\n" << text;
  }
  EXPECT_EQ(text.find("thinpipe-v1"), std::string::npos);
  EXPECT_EQ(unit_name(some_unit().run), "thinpipe-3f2a91ab.service");
}

TEST(ServiceUnit, SystemdFindsNoFault) {
  if (std::system("command -v systemd-analyze > /dev/null 2>&1") != 0) GTEST_SKIP() << "no systemd-analyze here";
  const ScratchFolder folder;
  auto unit = some_unit();
  unit.program = folder / "a $place of 100%" / "thinpipe";
  write(unit.program, "#!/bin/sh\n");
  std::filesystem::permissions(unit.program, std::filesystem::perms::owner_all);
  const auto file = folder / unit_name(unit.run);
  const auto verify = [&](const std::string& text) {
    write(file, text);
    const auto log = folder / "log";
    const int code =
        std::system(fmt::format("SYSTEMD_LOG_LEVEL=warning XDG_RUNTIME_DIR={0} systemd-analyze --user verify "
                                "--man=no {1} > {2} 2>&1",
                                folder.path().string(), file.string(), log.string())
                        .c_str());
    return fmt::format("{} {}", code, read_file(log).take());
  };
  const auto said = verify(unit_text(unit));
  EXPECT_EQ(said.find("thinpipe-3f2a91ab"), std::string::npos) << said;
  EXPECT_TRUE(said.starts_with("0 ")) << said;
  EXPECT_NE(verify(unit_text(unit) + "[Service]\nNonsense=1\n").find("Nonsense"), std::string::npos)
      << "it looks at nothing";
}

}  // namespace
}  // namespace thinpipe
