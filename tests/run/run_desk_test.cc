// What a member can keep open at the coordinator's desk. The simulator tests the rest of it.
#include "run/coordinator/run_desk.h"

#include <gtest/gtest.h>

#include "simulated_run.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

class NoWorkers final : public Outbox {
 public:
  Status send(SessionId, control::ToWorker) override { return {}; }
  void close(SessionId) override {}
  void epoch_began(uint64_t) override {}
};

struct EmptyDesk {
  EmptyDesk() { desk.start(1).take(); }

  test::ScratchFolder folder;
  NoWorkers workers;
  SystemClock clock;
  RunDesk desk{
      {.run = "a run", .config = test::small_rules().config, .folder = folder.path(), .vocab = 100, .open = true},
      RunStore::open(folder / "run.sqlite").take(),
      clock,
      workers};
};

TEST(RunDesk, MemberHasFourDownloadsAtATime) {
  EmptyDesk empty;
  auto& desk = empty.desk;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(desk.open_download("a").ok());
  const auto fifth = desk.open_download("a");
  ASSERT_FALSE(fifth.ok());
  EXPECT_EQ(fifth.error().message, "a has 4 downloads under way already");
  EXPECT_TRUE(desk.open_download("b").ok());
  desk.close_download("a");
  EXPECT_TRUE(desk.open_download("a").ok());
}

TEST(RunDesk, UploadInCrumbs_IsRefused) {
  EmptyDesk empty;
  auto& desk = empty.desk;
  const auto upload = desk.open_upload("a").take();
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(desk.note_part(upload).ok());
  const auto more = desk.note_part(upload);
  ASSERT_FALSE(more.ok());
  EXPECT_TRUE(test::has(more.error().message, "comes in more than 16 parts")) << more.error().message;
}

}  // namespace
}  // namespace thinpipe
