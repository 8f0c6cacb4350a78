// cmake --install, as a person would use it: into a folder that is moved afterwards.
#include <gtest/gtest.h>

#include "apps/program.h"

namespace thinpipe {
namespace {

using test::Program;

// Other programs look at the name they were called by, which Program sets to thinpipe.
test::Outcome shell(const Program& program, const std::string& command) {
  return program.run({"-c", command}, {.program = "/bin/sh"});
}

// Installs into first/ of the program's place and moves that to tree/, where it must work as well.
void install_and_move(const Program& program) {
  const auto outcome = shell(program, THINPIPE_CMAKE " --install '" THINPIPE_BUILD "' --strip --prefix \"$PWD/first\"");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::filesystem::rename(program / "first", program / "tree");
}

// What the loader is told about where libraries are: "Library rpath: [...]"; as RUNPATH it would not reach libtorch.
std::string rpath_of(const Program& program, const std::filesystem::path& file) {
  const auto out = shell(program, fmt::format("readelf -dW '{}'", file.string())).out;
  const auto at = out.find("Library rpath:");
  return at == std::string::npos ? "none" : out.substr(at, out.find('\n', at) - at);
}

TEST(Installation, IsWholeAndTrainsWhereverItWasMovedTo) {
  const Program program;
  test::write_tiny_run(program);
  install_and_move(program);
  const auto contents = program.contents();
  for (const std::string file :
       {"bin/thinpipe", "share/man/man1/thinpipe.1.gz", "share/bash-completion/completions/thinpipe",
        "share/zsh/vendor-completions/_thinpipe", "share/doc/thinpipe/README.md", "share/doc/thinpipe/copyright",
        "share/doc/thinpipe/changelog.gz", "share/doc/thinpipe/docs/config.md",
        "share/doc/thinpipe/configs/default.toml"}) {
    EXPECT_TRUE(contents.contains("tree/" + file)) << file;
  }
  const auto rpath = rpath_of(program, program / "tree/bin/thinpipe");
  EXPECT_EQ(rpath, rpath_of(program, THINPIPE_PROGRAM));
  EXPECT_EQ(rpath.find(":]"), std::string::npos) << "an empty entry is the working folder: " << rpath;
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  const auto outcome = program.run(test::tiny_run(), {.program = program / "tree/bin/thinpipe"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// The program by itself: not in its build, and not beside a module.
TEST(Installation, WithoutTheTokenizerModuleItSaysWhereItLooked) {
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  const Program program;
  test::write_tiny_run(program);
  std::filesystem::create_directories(program / "alone/bin");
  std::filesystem::copy_file(THINPIPE_PROGRAM, program / "alone/bin/thinpipe");
  test::expect_refused(program, test::tiny_run(),
                       {"tokenizer module", (program / "alone/lib/thinpipe").string(), "install thinpipe again"},
                       {.program = program / "alone/bin/thinpipe"});
}

}  // namespace
}  // namespace thinpipe
