// What people trip over who use the program for the first time, alone on a machine: models that do not fit, narrow
// terminals, starts that are refused, texts that grow, folders that are in use.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "apps/running_program.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::expect_refused;
using test::Program;
using test::RunningProgram;
using test::write_file;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A port of 127.0.0.1 that somebody else listens on.
class UsedPort {
 public:
  UsedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof place;
    auto* plain = reinterpret_cast<sockaddr*>(&place);
    TP_CHECK(
        ::bind(socket_, plain, size) == 0 && ::listen(socket_, 1) == 0 && ::getsockname(socket_, plain, &size) == 0,
        "cannot listen: {}", std::strerror(errno));
    number_ = ntohs(place.sin_port);
  }
  ~UsedPort() { ::close(socket_); }
  UsedPort(const UsedPort&) = delete;
  UsedPort& operator=(const UsedPort&) = delete;
  int number() const { return number_; }

 private:
  int socket_;
  int number_ = 0;
};

TEST(Newcomer, ModelTooLargeForTheMachine_IsRefusedBeforeAnythingIsMade) {
  const Program program;
  test::write_tiny_run(program);
  // The limit is only there to protect the machine if it is not refused.
  const test::RunOptions options{.address_space = rlim_t{4} << 30};
  const Arguments parts{"memory: this run needs up to", "lower model.d"};
  const Arguments huge{"model.d=32768", "model.heads=128", "model.blocks=200"};
  expect_refused(program, test::tiny_run(huge), parts, options);
  Arguments processes{"train", "tiny.toml"};
  for (const auto& setting : huge) processes.insert(processes.end(), {"--set", setting});
  expect_refused(program, processes, parts, options);
}

TEST(Newcomer, WorkerThatDiesAfterAStopWasAskedFor_IsNotStartedAgain) {
  const Program program;
  test::write_small_run(program);
  const auto run = program / "run";
  RunningProgram training(program, test::small_run(run, {"train.steps=100000"}));
  ASSERT_TRUE(training.wait_until("some steps are done", [&] { return test::metrics_lines(run) >= 2; }));
  {
    const test::Held coordinator(training.child("serve"));  // so that it does not stop the worker first
    training.signal(SIGTERM);
    ASSERT_TRUE(training.wait_for_output("stopping: "));
    const auto worker = training.child("worker-1");
    ASSERT_GT(worker, 0);
    ::kill(worker, SIGKILL);
    ASSERT_TRUE(training.wait_until("the worker is gone", [&] { return training.child("worker-1") != worker; }));
  }
  const auto outcome = training.wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.out << outcome.err;
  EXPECT_FALSE(has(outcome.out, "starting it again")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "stopped after step ")) << outcome.out;
}

// Sizes that make the default model small enough for a test.
const Arguments kSmall{"--in-process",
                       "--steps",
                       "2",
                       "--set",
                       "model.d=32",
                       "--set",
                       "model.heads=2",
                       "--set",
                       "train.seq_len=16",
                       "--set",
                       "train.microbatch=2",
                       "--run-dir",
                       "run"};

Arguments train_small(const Arguments& first) {
  Arguments all{"train"};
  all.insert(all.end(), first.begin(), first.end());
  all.insert(all.end(), kSmall.begin(), kSmall.end());
  return all;
}

TEST(Newcomer, TrainWithATextFile_TrainsTheDefaultModelOnItWithASmallerVocabulary) {
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  const Program program;
  write_file(program / "my book.txt", test::english(800, 1));
  const auto outcome = program.run(train_small({"my book.txt"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "pieces instead of 4096, to fit this text")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "corpus: my book.txt (")) << outcome.out;
  const auto config = read_file(program / "run/config.toml").take();
  EXPECT_TRUE(has(config, "corpus = \"my book.txt\"")) << config;
  EXPECT_FALSE(has(config, "vocab = 4096")) << config;
}

TEST(Newcomer, TrainWithAFolderOfTexts_TrainsOnAllOfThem) {
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  const Program program;
  write_file(program / "texts/a.txt", test::english(400, 1));
  write_file(program / "texts/b.txt", test::english(400, 2));
  const auto outcome = program.run(train_small({"texts/", "--set", "data.vocab=300"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "corpus: texts/ (")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "vocabulary 300;")) << outcome.out;
  EXPECT_FALSE(has(outcome.out, "instead of 4096")) << outcome.out;
}

TEST(Newcomer, TrainWithATextThatCannotBeOne_IsRefusedInOneLine) {
  const Program program;
  write_file(program / "config", "[train]\nsteps = 3\n");
  write_file(program / "empty.txt", "");
  write_file(program / "text.txt", test::english(80, 1));
  expect_refused(program, {"train", "config"}, {"config is a config: rename it to config.toml"});
  expect_refused(program, {"train", "missing.txt"}, {"missing.txt", "No such file"});
  expect_refused(program, {"train", "empty.txt"}, {"empty.txt", "no text"});
  expect_refused(program, {"train", "text.txt", "--set", "data.corpus=kjv"}, {"text.txt", "one of the two"});
}

// What a terminal shows between two line ends or rewritings, without the codes that erase.
std::vector<std::string> shown_lines(const std::string& out) {
  std::vector<std::string> lines{""};
  for (size_t at = 0; at < out.size(); ++at) {
    if (out[at] == '\r' || out[at] == '\n') {
      lines.emplace_back();
    } else if (out.compare(at, 3, "\033[K") == 0) {
      at += 2;
    } else {
      lines.back() += out[at];
    }
  }
  return lines;
}

TEST(Newcomer, LinesOnANarrowTerminal_BreakAtSpacesAndTheStepLineIsOneLine) {
  if (!test::has_pseudo_terminals()) GTEST_SKIP() << "no pseudo-terminals";
  const Program program;
  test::write_small_run(program);
  for (const uint16_t columns : {80, 50}) {
    const auto outcome =
        program.run(test::small_run(program / fmt::format("run{}", columns)), {.terminal = true, .columns = columns});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    int steps = 0;
    for (const auto& line : shown_lines(outcome.out)) {
      // A path or an address stays whole, so that it can be copied.
      const size_t last_word = line.size() - (line.rfind(' ') + 1);
      EXPECT_TRUE(line.size() < columns || last_word > 30) << line;
      if (!line.starts_with("step ")) continue;
      ++steps;
      EXPECT_LT(line.size(), columns) << line;
      EXPECT_TRUE(has(line, "ETA") || has(line, "valid")) << line;
    }
    EXPECT_GT(steps, 0) << outcome.out;
  }
}

TEST(Newcomer, ListOfRunsOnANarrowTerminal_HasALineForEach) {
  if (!test::has_pseudo_terminals()) GTEST_SKIP() << "no pseudo-terminals";
  const Program program;
  test::write_tiny_run(program);
  const auto name = std::string("2026-01-01-00-00-00");
  ASSERT_EQ(program.run(test::tiny_run({}, {"--run-dir", (program.data() / "runs" / name).string()})).exit_code, 0);
  const auto wide = program.run({"runs"}, {.terminal = true, .columns = 160}).out;
  EXPECT_TRUE(has(wide, "  corpus.txt  ") && has(wide, "KiB  complete")) << wide;
  const auto narrow = program.run({"runs"}, {.terminal = true, .columns = 80}).out;
  EXPECT_EQ(std::count(narrow.begin(), narrow.end(), '\n'), 1) << narrow;
  EXPECT_LE(narrow.size(), 80U) << narrow;
  EXPECT_TRUE(narrow.starts_with(name + "  step 3/3  loss ") && narrow.ends_with("  complete\n")) << narrow;
}

TEST(Newcomer, ServeWithATextFile_ServesTheDefaultModelOnIt) {
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  const Program program;
  write_file(program / "my book.txt", test::english(800, 1));
  RunningProgram serving(program, {"serve", "my book.txt", "--steps", "7", "--listen", "127.0.0.1", "--run-dir", "run",
                                   "--dashboard", "off"});
  ASSERT_TRUE(serving.wait_for_output("to let machines join")) << serving.err();
  EXPECT_TRUE(has(serving.out(), "pieces instead of 4096, to fit this text")) << serving.out();
  const auto config = read_file(program / "run/config.toml").take();
  EXPECT_TRUE(has(config, "corpus = \"my book.txt\"") && has(config, "steps = 7\n")) << config;
}

TEST(Newcomer, RefusedServe_NamesTheCauseAndLeavesNoRun) {
  const Program program;
  test::write_tiny_run(program);
  const UsedPort used;
  const auto taken = fmt::format("127.0.0.1:{}", used.number());
  expect_refused(program, {"serve", "tiny.toml", "--announce", "no port"}, {"no port"});
  expect_refused(program, {"serve", "tiny.toml", "--announce", "no port", "--run-dir", "run"}, {"no port"});
  const auto refused = [&](const Arguments& arguments, const Arguments& parts) {
    const auto outcome = program.run(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    test::expect_one_line({2, "", outcome.err.substr(std::min(outcome.err.size(), outcome.err.rfind("thinpipe: ")))},
                          parts);
    EXPECT_FALSE(fs::exists(program / "run"));
    EXPECT_TRUE(!fs::exists(program.data() / "runs") || fs::is_empty(program.data() / "runs"));
  };
  refused({"serve", "tiny.toml", "--listen", taken},
          {"cannot listen on " + taken, fmt::format("port {} is in use", used.number())});
  refused({"serve", "tiny.toml", "--listen", taken, "--run-dir", "run"}, {"is in use"});
  refused({"serve", "tiny.toml", "--listen", "203.0.113.7:7700"},
          {"cannot listen on 203.0.113.7:7700", "203.0.113.7 is not an address of this machine"});
}

TEST(Newcomer, RunFolderWithOtherFiles_IsRefused) {
  const Program program;
  test::write_tiny_run(program);
  fs::create_directory(program / "home");
  write_file(program / "home" / "letter.txt", "dear");
  expect_refused(program, test::tiny_run({}, {"--run-dir", "home"}), {"home is not empty", "letter.txt"});
  expect_refused(program, {"train", "tiny.toml", "--run-dir", "home"}, {"home is not empty", "letter.txt"});
  expect_refused(program, {"serve", "tiny.toml", "--run-dir", "home"}, {"home is not empty", "letter.txt"});
}

TEST(Newcomer, EvalWithoutAName_TakesTheNewestRunThatHasAModel) {
  const Program program;
  test::write_tiny_run(program);
  const auto runs = program.data() / "runs";
  ASSERT_EQ(program.run(test::tiny_run({}, {"--run-dir", (runs / "2026-01-01-00-00-00").string()})).exit_code, 0);
  fs::create_directories(runs / "2026-01-02-00-00-00");
  fs::copy(runs / "2026-01-01-00-00-00" / "config.toml", runs / "2026-01-02-00-00-00" / "config.toml");
  const auto outcome = program.run({"eval"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "2026-01-01-00-00-00")) << outcome.out;
}

TEST(Newcomer, TextThatHasGrownSince_DoesNotBlockItsRun) {
  const Program program;
  test::write_small_run(program);
  const auto run = program / "run";
  {
    RunningProgram training(program, test::small_run(run, {"train.steps=40", "link.delay=10ms"}));
    ASSERT_TRUE(training.wait_until("some steps are done", [&] { return test::metrics_lines(run) >= 2; }));
    training.signal(SIGINT);
    ASSERT_EQ(training.wait().exit_code, 130);
  }
  write_file(program / "corpus.txt", read_file(program / "corpus.txt").take() + "One more line.\n");
  EXPECT_EQ(program.run({"eval", "run"}).exit_code, 0);
  const auto resumed = program.run({"train", "--resume", "run"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(has(resumed.out, "of it since it was resumed")) << resumed.out;
  // Without the prepared copy there is no way to go on.
  fs::remove_all(program.data() / "prepared");
  expect_refused(program, {"eval", "run"}, {"is not the text that this run started with", "prepared copy"});
}

TEST(Newcomer, ImportedRun_IsNotCalledInterrupted) {
  const Program program;
  test::write_tiny_run(program);
  ASSERT_EQ(program.run(test::tiny_run({"model.mode=subspace"}, {"--run-dir", "first"})).exit_code, 0);
  ASSERT_EQ(program.run({"export", "first", "--format", "hf", "--out", "hf"}).exit_code, 0);
  ASSERT_EQ(program.run({"import", "hf", "--set", "data.corpus=corpus.txt", "--set", "train.seq_len=8"}).exit_code, 0);
  const auto runs = program.run({"runs"}).out;
  EXPECT_TRUE(has(runs, "imported, not trained yet")) << runs;
}

TEST(Newcomer, ArrowKeysInThePromptLoop_MoveTheCursor) {
  if (!test::has_pseudo_terminals()) GTEST_SKIP() << "no pseudo-terminals";
  const Program program;
  test::write_tiny_run(program);
  ASSERT_EQ(program.run(test::tiny_run({}, {"--run-dir", "run"})).exit_code, 0);
  // "helo", one to the left, "l": hello. Up: the same line again.
  RunningProgram prompt(program, {"generate", "run", "--max-tokens", "2"}, {}, {.terminal = true, .typed = true});
  ASSERT_TRUE(prompt.wait_for_output("> "));
  prompt.type("/helo\033[Dl\r");
  EXPECT_TRUE(
      prompt.wait_until("it repeats what it was told", [&] { return has(prompt.err(), "/hello: the commands"); }));
  prompt.type("\033[A\177\177\177\177\177quit\r");
  const auto outcome = prompt.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

}  // namespace
}  // namespace thinpipe
