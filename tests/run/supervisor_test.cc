// What a person hears of a run on one machine. How its processes live and die is tested with the program (tests/apps).
#include "run/supervisor.h"

#include <gtest/gtest.h>

#include "run/coordinator/run_store.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;
using Texts = std::vector<std::string>;

// What the coordinator answers when it is asked for the events after that number.
control::RunStatus answer(const RunStore& store, int64_t after) {
  control::RunStatus status;
  for (const auto& event : store.events(after, 200).take()) {
    auto& line = *status.add_events();
    line.set_number(event.number);
    line.set_kind(event.kind);
    line.set_text(event.text);
  }
  return status;
}

TEST(EventNotes, TellEachEventOfThisStartOnceAndNoneOfEarlierOnes) {
  const ScratchFolder folder;
  RunStore::open(folder / "run.sqlite").take().add_event("rollback", "of an earlier start").take();
  EventNotes notes(folder.path());
  auto store = RunStore::open(folder / "run.sqlite").take();
  // Before the supervisor's first question: the coordinator passes over a damaged checkpoint while it starts.
  store.add_event("refused", "step 20 is damaged").take();
  store.add_event("joined", "only in the store").take();
  EXPECT_EQ(notes.of(answer(store, notes.last())), Texts{"step 20 is damaged"});
  store.add_event("paused", "by the operator").take();
  const auto status = answer(store, notes.last());
  EXPECT_EQ(notes.of(status), Texts{"by the operator"});
  EXPECT_EQ(notes.of(status), Texts{});
}

TEST(EventNotes, OfARunThatHasNoStoreYetTellEverything) {
  const ScratchFolder folder;
  EventNotes notes(folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder / "run.sqlite"));
  auto store = RunStore::open(folder / "run.sqlite").take();
  store.add_event("refused", "the first").take();
  EXPECT_EQ(notes.of(answer(store, notes.last())), Texts{"the first"});
}

}  // namespace
}  // namespace thinpipe
