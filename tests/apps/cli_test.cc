// User errors, one run of the program each: exit code 2, one line that names the key or the file and says what would be
// right, and nothing half written.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "apps/program.h"

namespace thinpipe {
namespace {

using test::expect_refused;
using test::Program;
using test::tiny_run;
using test::write_file;

TEST(CommandLine, NamesTheUnknownWord) {
  const Program program;
  const auto alone = program.run({});
  EXPECT_EQ(alone.exit_code, 0);
  EXPECT_NE(alone.out.find("Try first:\n  thinpipe train"), std::string::npos) << alone.out;
  expect_refused(program, {"trian"}, {"unknown command trian", "did you mean train?"});
  expect_refused(program, {"dance"}, {"unknown command dance", "the commands are train"});
  expect_refused(program, {"--verbose"}, {"unknown option --verbose", "did you mean --version?"});
  expect_refused(program, {"train", "--verbose"}, {"unknown option --verbose", "thinpipe train --help"});
  expect_refused(program, {"train", "--stpes", "5"}, {"unknown option --stpes", "did you mean --steps?"});
  expect_refused(program, {"join", "--chekc"}, {"unknown option --chekc", "did you mean --check?"});
  expect_refused(program, {"lab", "exactnes"}, {"unknown command exactnes", "did you mean exactness?"});
  expect_refused(program, {"train", "a.toml", "b.toml"}, {"unexpected argument b.toml", "thinpipe train --help"});
  expect_refused(program, {"bench", "wan", "--rank", "0"}, {"--rank", "not in range", "65536"});
  expect_refused(program, {"--log-level", "loud", "train"}, {"loud", "debug, info, warn, error"});
}

TEST(CommandLine, ChecksItsOwnOptionsLikeTheKeysTheySet) {
  const Program program;
  test::write_tiny_run(program);
  expect_refused(program, tiny_run({"model.d"}), {"--set model.d", "section.key=value"});
  expect_refused(program, tiny_run({}, {"--set"}), {"--set", "missing"});
  expect_refused(program, tiny_run({}, {"--steps", "-1"}),
                 {"train.steps = -1 on the command line", "a whole number from 0 to"});
  expect_refused(program, tiny_run({}, {"--steps", "many"}), {"train.steps = \"many\"", "a whole number from 0 to"});
  expect_refused(program, tiny_run({}, {"--device", "tpu"}),
                 {"train.device = \"tpu\"", "\"cpu\", \"cuda\" or \"cuda:N\""});
}

TEST(CommandLine, RefusesAnEmptyValueInsteadOfTakingTheDefault) {
  const Program program;
  test::write_tiny_run(program);
  const std::vector<std::pair<test::Arguments, std::string>> commands{
      {{"train", ""}, "CONFIG"},
      {tiny_run({}, {"--steps", ""}), "--steps"},
      {tiny_run({}, {"--device", ""}), "--device"},
      {tiny_run({}, {"--run-dir", ""}), "--run-dir"},
      {tiny_run({}, {"--set", ""}), "--set"},
      {{"train", "--resume", ""}, "--resume"},
      {{"serve", ""}, "CONFIG"},
      {{"serve", "--run", ""}, "--run"},
      {{"serve", "--listen", ""}, "--listen"},
      {{"generate", "", "--prompt", "a"}, "MODEL"},
      {{"generate", "--step", "", "--prompt", "a"}, "--step"},
      {{"eval", "--text", ""}, "--text"},
      {{"export", "--format", "hf", "--out", ""}, "--out"},
      {{"import", ""}, "FOLDER"},
      {{"status", ""}, "RUN"},
      {{"invite", ""}, "RUN"},
      {{"kick", "peer", ""}, "RUN"},
      {{"join", ""}, "INVITE"},
      {{"doctor", "--config", ""}, "--config"},
      {{"data", "prepare", ""}, "CORPUS"},
      {{"data", "prepare", "corpus.txt", "--tokenizer", ""}, "--tokenizer"},
      {{"data", "prepare", "corpus.txt", "--field", ""}, "--field"},
      {{"data", "inspect", ""}, "CORPUS"},
      {{"tokenizer", "train", ""}, "CORPUS"},
      {{"completion", ""}, "SHELL"},
      {{"--log-level", "", "runs"}, "--log-level"},
  };
  for (const auto& [command, name] : commands) {
    expect_refused(program, command, {name + ": the value is empty; give one or leave it out"});
  }
}

TEST(CommandLine, WaitOfJoin_NeedsATime) {
  const Program program;
  for (const char* wait : {"soon", "-1h", "2", "9999d"}) {
    expect_refused(program, {"join", "thinpipe-v1-x", fmt::format("--wait={}", wait)}, {"--wait", wait, "30min, 2h"});
  }
}

TEST(CommandLine, Override_TakesOneWordAndNotTheConfigAfterIt) {
  const Program program;
  test::write_tiny_run(program);
  // 32 is from the file.
  expect_refused(program, {"train", "--in-process", "--set", "train.steps=1", "--set", "model.heads=3", "tiny.toml"},
                 {"model.heads = 3", "divide model.d = 32"});
  expect_refused(program, {"serve", "--set", "model.heads=3", "tiny.toml"}, {"model.heads = 3", "model.d = 32"});
  expect_refused(program, {"import", "--set", "model.heads=3", "no-folder"}, {"no-folder"});
  expect_refused(program, {"train", "tiny.toml", "--set", "train.steps=1", "model.d=64"}, {"model.d=64", "--help"});
}

TEST(CommandLine, RefusesADeviceThisBuildDoesNotHaveBeforeDoingAnything) {
  const Program program;
  test::write_tiny_run(program);
  expect_refused(program, tiny_run({}, {"--device", "cuda"}), {"train.device = \"cuda\"", "use \"cpu\""});
  EXPECT_FALSE(std::filesystem::exists(program.data()));
}

TEST(CommandLine, ListsARunWithDamagedFiles) {
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  const Program program;
  test::write_tiny_run(program);
  const auto run = program.data() / "runs" / "damaged";
  ASSERT_EQ(program.run(tiny_run({}, {"--steps", "1", "--run-dir", run.string()})).exit_code, 0);
  for (const char* text : {"", "[]", "null", "{", R"({"failed": "yes"})", R"({"pid": {}, "step": "1"})"}) {
    for (const char* name : {"outcome.json", "coordinator.json"}) write_file(run / name, text);
    const auto outcome = program.run({"runs"});
    EXPECT_EQ(outcome.exit_code, 0) << text << ": " << outcome.err;
    EXPECT_NE(outcome.out.find("damaged  step 1/1"), std::string::npos) << text << ": " << outcome.out;
  }
  std::filesystem::remove(run / "metrics.jsonl");
  ASSERT_EQ(::mkfifo((run / "metrics.jsonl").c_str(), 0600), 0);  // a reader that waits for a writer would hang
  EXPECT_NE(program.run({"runs"}).out.find("damaged  step 0/1"), std::string::npos);
}

// Runs it with a redirection: "> /dev/full".
test::Outcome run_redirected(const Program& program, const test::Arguments& arguments, const std::string& where) {
  test::Arguments all{"-c", "exec \"$0\" \"$@\" " + where, THINPIPE_PROGRAM};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return program.run(all, {.program = "/bin/sh"});
}

TEST(CommandLine, UnwritableOutput_FailsWithOneLine) {
  const Program program;
  // Short outputs fail at the end, long ones earlier.
  const std::vector<test::Arguments> commands{
      {"data", "list", "--json"}, {"completion", "bash"}, {"__complete", ""}, {"--help"}, {"--help-all"}, {"--version"},
      {"train", "--help"}};
  for (const auto& command : commands) {
    SCOPED_TRACE(fmt::format("thinpipe {}", fmt::join(command, " ")));
    const auto outcome = run_redirected(program, command, "> /dev/full");
    EXPECT_EQ(outcome.exit_code, 2);
    test::expect_one_line(outcome, {"cannot write standard output: No space left on device"});
  }
}

TEST(CommandLine, UnwritableStderr_DoesNotChangeTheExitCode) {
  const Program program;
  const std::vector<test::Arguments> commands{{"dance"}, {"train", "no.toml"}, {"train", "--verbose"}};
  for (const auto& command : commands) {
    EXPECT_EQ(run_redirected(program, command, "2> /dev/full").exit_code, 2);
    EXPECT_EQ(run_redirected(program, command, "> /dev/full 2>&1").exit_code, 2);
  }
  EXPECT_EQ(run_redirected(program, {"--help-all"}, "> /dev/full 2>&1").exit_code, 2);
}

TEST(CliConfig, Unreadable_IsNamed) {
  const Program program;
  std::filesystem::create_directory(program / "folder.toml");
  write_file(program / "broken.toml", "[model]\nd = = 32\n");
  write_file(program / "latin.toml", "[data]\ncorpus = \"caf\xe9\"\n");
  expect_refused(program, {"train", "missing.toml"}, {"missing.toml", "No such file"});
  expect_refused(program, {"train", "folder.toml"}, {"folder.toml", "not a file"});
  expect_refused(program, {"train", "broken.toml"}, {"broken.toml:2:5", "not valid TOML"});
  expect_refused(program, {"train", "latin.toml"}, {"latin.toml:2", "not valid TOML"});
  expect_refused(program, {"train", "two\nlines.toml"}, {"two\\u000alines.toml", "No such file"});
}

TEST(CommandLine, PipeInsteadOfAFile_IsRefusedWithoutWaiting) {
  const Program program;
  test::write_tiny_run(program);
  ASSERT_EQ(::mkfifo((program / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", program / "pipe.toml");
  expect_refused(program, {"train", "pipe.toml"}, {"cannot read pipe.toml", "not a regular file"});
  expect_refused(program, {"train", "pipe"}, {"\"pipe\"", "neither a file nor a folder"});
  expect_refused(program, tiny_run({"data.tokenizer=pipe"}), {"data.tokenizer", "cannot read pipe", "not a regular"});
  expect_refused(program, tiny_run({"data.corpus=pipe"}), {"data.corpus = \"pipe\"", "neither a file nor a folder"});
  expect_refused(program, {"data", "inspect", "pipe"}, {"pipe"});
}

TEST(CliConfig, FaultsNameTheKeyThePlaceAndWhatWouldBeRight) {
  const Program program;
  test::write_tiny_run(program);
  write_file(program / "unknown.toml", "[model]\n\nhaeds = 4\n");
  write_file(program / "type.toml", "[model]\nd = \"wide\"\n");
  expect_refused(program, {"train", "unknown.toml"}, {"model.haeds in unknown.toml:3", "did you mean model.heads?"});
  expect_refused(program, {"train", "type.toml"}, {"model.d = \"wide\" in type.toml:2", "a whole number from 1 to"});
  expect_refused(program, tiny_run({"modle.d=64"}), {"[modle]", "did you mean [model]?"});
  expect_refused(program, tiny_run({"model.qk_norm=1"}), {"model.qk_norm = 1", "true or false"});
  expect_refused(program, tiny_run({"model.heads=3"}), {"model.heads = 3", "divide model.d = 32"});
  expect_refused(program, tiny_run({"pipeline.stages=3"}), {"pipeline.stages = 3", "at most model.blocks = 2"});
  expect_refused(program, tiny_run({"pipeline.stages=2", "pipeline.cuts=[1, 2]"}),
                 {"pipeline.cuts = [1, 2]", "sum to model.blocks = 2"});
  expect_refused(program, tiny_run({"pipeline.cuts=[0, 2]"}), {"pipeline.cuts = [0, 2]", "from 1 to"});
}

TEST(CliConfig, BoundaryThatDoesNotFitTheModel_IsRefused) {
  const Program program;
  test::write_tiny_run(program);
  const auto subspace = [](std::string setting) {
    return tiny_run({"model.mode=subspace", "pipeline.stages=2", setting});
  };
  expect_refused(program, subspace("subspace.rank=33"), {"subspace.rank = 33", "at most model.d = 32"});
  expect_refused(program, subspace("subspace.full_rank_tail=2"),
                 {"pipeline.stages = 2", "subspace.full_rank_tail", "at most 1"});
  expect_refused(program,
                 tiny_run({"model.mode=subspace", "pipeline.stages=2", "subspace.rank=6", "boundary.pack=int2"}),
                 {"boundary.pack = \"int2\"", "subspace.rank = 6", "use 4 or 8"});
}

TEST(CliData, CorpusThatIsNotText_IsNamed) {
  const Program program;
  test::write_tiny_run(program);
  write_file(program / "empty.txt", "");
  write_file(program / "latin.txt", test::english(20, 2) + "caf\xe9\n" + test::english(20, 3));
  write_file(program / "broken.jsonl", "{\"text\": \"one\"}\n{\"txet\": \"two\"}\n");
  std::filesystem::create_directory(program / "nothing");
  expect_refused(program, tiny_run({"data.corpus=missing.txt"}), {"data.corpus = \"missing.txt\"", "give \"kjv\""});
  expect_refused(program, tiny_run({"data.corpus=a\nb"}), {"data.corpus = \"a\\u000ab\"", "give \"kjv\""});
  expect_refused(program, tiny_run({"data.corpus=nothing"}), {"data.corpus", "nothing has no files"});
  expect_refused(program, tiny_run({"data.corpus=empty.txt"}), {"data.corpus = \"empty.txt\"", "no text"});
  expect_refused(program, tiny_run({"data.corpus=latin.txt"}),
                 {"latin.txt: line 21", "invalid UTF-8", "data.encoding"});
  expect_refused(program, tiny_run({"data.corpus=broken.jsonl"}),
                 {"broken.jsonl: line 2", "the field \"text\"", "\"txet\"", "data.field"});
  // A regular file that opens and then fails on every read, for root too.
  expect_refused(program, tiny_run({"data.corpus=/proc/self/mem"}), {"cannot read /proc/self/mem"});
  EXPECT_FALSE(std::filesystem::exists(program.data()));
}

TEST(CliData, ACorpusTooShortForTheRunIsRefused) {
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  const Program program;
  test::write_tiny_run(program);
  write_file(program / "short.txt", "hello there\nhello you\n");
  expect_refused(program, tiny_run({"data.corpus=short.txt"}), {"data.vocab = 300", "at most"});
  expect_refused(program, tiny_run({"data.vocab=260"}), {"data.vocab = 260 is too small", "need"});
  expect_refused(program, tiny_run({"train.seq_len=60000"}), {"train.seq_len = 60000", "use at most"});
}

TEST(CliData, ATokenizerThatDoesNotFitIsNamed) {
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  const Program program;
  test::write_tiny_run(program);
  ASSERT_EQ(program.run(tiny_run({"train.steps=0"})).exit_code, 0);
  const auto prepared = std::filesystem::directory_iterator(program.data() / "prepared")->path();
  const auto model = read_file(prepared / "tokenizer.model").take();
  write_file(program / "whole.model", model);
  write_file(program / "cut.model", model.substr(0, model.size() - 1));
  write_file(program / "half.model", model.substr(0, model.size() / 2));
  expect_refused(program, tiny_run({"data.tokenizer=missing.model"}),
                 {"data.tokenizer", "missing.model", "No such file"});
  expect_refused(program, tiny_run({"data.tokenizer=corpus.txt"}),
                 {"corpus.txt", "not a complete sentencepiece model"});
  expect_refused(program, tiny_run({"data.tokenizer=cut.model"}), {"cut.model", "not a complete sentencepiece model"});
  expect_refused(program, tiny_run({"data.tokenizer=half.model"}),
                 {"half.model", "not a complete sentencepiece model"});
  expect_refused(program, tiny_run({"data.tokenizer=whole.model", "data.vocab=301"}),
                 {"data.vocab = 301", "whole.model has 300 pieces", "set data.vocab = 300"});
}

}  // namespace
}  // namespace thinpipe
