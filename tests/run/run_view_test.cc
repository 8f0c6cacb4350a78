// What the organiser and the members of a shared run see of it, from statuses that a test makes.
#include "run/run_view.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>

#include "base/files.h"
#include "config/config_file.h"
#include "run/run_files.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using std::chrono::seconds;

class Screen {
 public:
  Screen() : file_(open_memstream(&data_, &size_)) {}
  ~Screen() {
    std::fclose(file_);
    std::free(data_);
  }
  std::FILE* file() { return file_; }
  // What was printed since the last call.
  std::string news() {
    std::fflush(file_);
    const std::string text(data_ + seen_, size_ - seen_);
    seen_ = size_;
    return text;
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0, seen_ = 0;
  std::FILE* file_;
};

// A run of two stages and ten steps.
struct View : testing::Test {
  static RunConfig config() {
    return parse_config("", "the test", std::vector<std::string>{"pipeline.stages=2", "train.steps=10"});
  }
  static control::RunStatus status(const std::string& phase, int machines) {
    control::RunStatus one;
    one.set_phase(phase);
    for (int i = 0; i < machines; ++i) {
      auto& member = *one.add_members();
      member.set_peer(fmt::format("m{}", i));
      member.set_connected(true);
      if (i < 2) member.mutable_seat()->set_stage(i);
    }
    return one;
  }
  std::string shown(const control::RunStatus& one) {
    view.show(one);
    return screen.news();
  }

  ManualClock clock;
  Screen screen;
  RunView view{config(), 0, {"", "ask them", "press play"}, screen.file(), /*live=*/false, clock};
};

TEST_F(View, MissingMachines_AreCountedOnceUntilAllAreHere) {
  EXPECT_EQ(shown(status("gathering", 0)), "0 of 2 machines are here; ask them\n");
  EXPECT_EQ(shown(status("gathering", 0)), "");
  EXPECT_EQ(shown(status("gathering", 1)), "");
  clock.advance(seconds(5));
  EXPECT_EQ(shown(status("gathering", 1)), "1 of 2 machines are here; ask them\n");
  EXPECT_EQ(shown(status("running", 2)), "all 2 machines are here\n");
  EXPECT_EQ(shown(status("running", 2)), "");
}

TEST_F(View, MachineThatIsBackAtOnce_IsNotMissed) {
  shown(status("running", 2));
  EXPECT_EQ(shown(status("gathering", 1)), "");
  clock.advance(seconds(1));
  EXPECT_EQ(shown(status("gathering", 1)), "");
  EXPECT_EQ(shown(status("running", 2)), "");
  clock.advance(seconds(9));
  EXPECT_EQ(shown(status("gathering", 1)), "") << "the time counts from the new loss";
  clock.advance(seconds(9));
  EXPECT_EQ(shown(status("gathering", 1)), "1 of 2 machines are here; ask them\n");
}

TEST_F(View, AllMachinesAreHereAndItWaits_SaysWhy) {
  auto one = status("gathering", 2);
  one.set_why("not enough\nmemory");
  EXPECT_EQ(shown(one), "the run waits: not enough memory\n");
}

TEST_F(View, Steps_AreShownLikeThoseOfTrain) {
  auto one = status("running", 2);
  one.set_step(1);
  one.set_loss(5.5);
  clock.advance(seconds(1));
  EXPECT_TRUE(shown(one).starts_with("step 1/10  loss 5.5000  "));
}

TEST_F(View, Pause_IsSaidOnceAndItsEndToo) {
  auto one = status("gathering", 2);
  shown(one);
  one.set_paused(true);
  EXPECT_EQ(shown(one), "the run is paused: 0 of 10 steps are done; press play\n");
  one.set_phase("paused");
  EXPECT_EQ(shown(one), "");
  one.set_paused(false);
  EXPECT_EQ(shown(one), "the run goes on\n");
}

TEST_F(View, PauseDuringAStep_IsSaidWhenThatStepIsDone) {
  auto one = status("running", 2);
  shown(one);
  one.set_paused(true);
  EXPECT_EQ(shown(one), "");
  one.set_phase("paused");
  one.set_step(5);
  one.set_loss(5.5);
  EXPECT_NE(shown(one).find("the run is paused: 5 of 10 steps are done; press play\n"), std::string::npos);
}

TEST_F(View, ImpossibleNumbers_AreBounded) {
  auto one = status("running", 2);
  one.set_step(std::numeric_limits<int64_t>::max());
  one.set_step_bytes(std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(shown(one).starts_with("step 10/10  "));
  one.set_step(std::numeric_limits<int64_t>::min());
  EXPECT_EQ(shown(one), "");
}

TEST_F(View, OfAMember_NamesItsStage) {
  RunView member(config(), 0, {"m1", "", ""}, screen.file(), false, clock);
  member.show(status("forming", 2));
  member.show(status("running", 2));
  EXPECT_EQ(screen.news(), "this machine holds stage 1 of 2\n");
}

TEST_F(View, OfASpare_SaysThatItWaits) {
  RunView spare(config(), 0, {"m2", "", ""}, screen.file(), false, clock);
  spare.show(status("running", 3));
  EXPECT_EQ(screen.news(), "every stage has a machine: this one waits as a spare\n");
}

TEST_F(View, Silence_FillsNoLog) {
  int lines = 0;
  for (int i = 0; i < 12 * 3600; ++i) {
    clock.advance(seconds(1));
    view.silent(seconds(i));
    if (const auto text = screen.news(); !text.empty()) {
      EXPECT_TRUE(text.starts_with("the coordinator has not answered for ")) << text;
      ++lines;
    }
  }
  EXPECT_GE(lines, 5);
  EXPECT_LE(lines, 20);
}

TEST(JoinedRuns, AreReadAsWritten_AndForeignTextIsMadeSafe) {
  const test::ScratchFolder folder;
  JoinedRun joined{.run = "0123", .name = "a\n\x1b[2J", .peer = "me-1", .addresses = {"host:1"}};
  joined.stage = 3;
  joined.steps_here = 12;
  joined.bytes_sent = 1ULL << 40;
  joined.ended = "no\xff";
  write_joined_run(folder.path(), joined).take();
  const auto read = read_joined_run(folder.path()).take();
  EXPECT_EQ(read.name, "a  [2J");
  EXPECT_EQ(read.ended, "no?");
  EXPECT_EQ(read.addresses, joined.addresses);
  EXPECT_EQ(read.stage, 3);
  EXPECT_EQ(read.steps_here, 12);
  EXPECT_EQ(read.bytes_sent, 1ULL << 40);
}

TEST(JoinedRuns, DamagedFile_IsAnError) {
  const test::ScratchFolder folder;
  for (const char* text : {"", "{}", "[1]", R"({"run": 5})"}) {
    write_file_atomically(folder / "joined.json", text).take();
    EXPECT_FALSE(read_joined_run(folder.path()).ok()) << text;
  }
}

TEST(RunName, IsTheFoldersWhateverTheSlashes) {
  EXPECT_EQ(run_name("/a/runs/first-try"), "first-try");
  EXPECT_EQ(run_name("/a/runs/first-try/"), "first-try");
  EXPECT_EQ(run_name("runs/x"), "x");
  EXPECT_EQ(run_name("/a/no\xff"), "no?");
}

}  // namespace
}  // namespace thinpipe
