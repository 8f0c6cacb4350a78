// cmake --install, as a person would use it: into a folder that is moved afterwards.
#include <gtest/gtest.h>

#include <regex>

#include "apps/program.h"

namespace thinpipe {
namespace {

using test::Program;

// Runs through sh: Program sets argv[0] to thinpipe, which other programs may read.
test::Outcome shell(const Program& program, const std::string& command) {
  return program.run({"-c", command}, {.program = "/bin/sh"});
}

// Installs into first/ and moves that to tree/, where it must work as well.
void install_and_move(const Program& program) {
  const auto outcome = shell(program, THINPIPE_CMAKE " --install '" THINPIPE_BUILD "' --strip --prefix \"$PWD/first\"");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::filesystem::rename(program / "first", program / "tree");
}

// The installed tree's full program and modules are in Debian's folder for libraries.
std::filesystem::path full_program(const Program& program) {
  for (const auto& path : program.contents()) {
    if (path.starts_with("tree/lib/") && path.ends_with("/thinpipe/thinpipe-full")) return program / path;
  }
  return {};
}

// The loader's library path: "Library rpath: [...]"; a RUNPATH would not apply to libtorch.
std::string rpath_of(const Program& program, const std::filesystem::path& file) {
  const auto out = shell(program, fmt::format("readelf -dW '{}'", file.string())).out;
  const auto at = out.find("Library rpath:");
  return at == std::string::npos ? "none" : out.substr(at, out.find('\n', at) - at);
}

TEST(Installation, MovedElsewhere_IsCompleteAndTrains) {
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
  EXPECT_EQ(rpath_of(program, program / "tree/bin/thinpipe"), "none");
  const auto rpath = rpath_of(program, full_program(program));
  EXPECT_EQ(rpath, rpath_of(program, THINPIPE_FULL_PROGRAM));
  EXPECT_NE(rpath, "none");
  EXPECT_EQ(rpath.find(":]"), std::string::npos) << "an empty entry is the working folder: " << rpath;
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  const auto outcome = program.run(test::tiny_run(), {.program = program / "tree/bin/thinpipe"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// The program alone: outside its build and without the parts that are installed beside it.
TEST(Installation, WithoutItsParts_SaysWhereItLooked) {
  const Program program;
  test::write_tiny_run(program);
  std::filesystem::create_directories(program / "alone/bin");
  std::filesystem::copy_file(THINPIPE_PROGRAM, program / "alone/bin/thinpipe");
  const auto folder = (program / "alone/lib/thinpipe").string();
  const test::RunOptions alone{.program = program / "alone/bin/thinpipe"};
  test::expect_refused(program, test::tiny_run(), {"there is no thinpipe-full, the program with libtorch, in", folder},
                       alone);
  if (!test::kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
  test::expect_refused(program, {"data", "prepare", "corpus.txt", "--vocab", "300"},
                       {"the tokenizer module", folder, "install thinpipe again"}, alone);
}

class ManualPage : public testing::Test {
 protected:
  ManualPage() {
    install_and_move(program_);
    const auto outcome =
        shell(program_, "gunzip tree/share/man/man1/thinpipe.1.gz && cat tree/share/man/man1/thinpipe.1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    page_ = std::regex_replace(outcome.out, std::regex(R"(\\-)"), "-");
  }

  Program program_;
  std::string page_;  // with plain dashes
};

TEST_F(ManualPage, HasEveryCommandAndOptionExceptHiddenOnes) {
  std::istringstream help(program_.run({"--help-all"}).out);
  const std::regex command("(thinpipe .*:)"), option(" +(-h, )?(--[a-z0-9-]+).*");
  int commands = 0, options = 0;
  for (std::string line; std::getline(help, line);) {
    std::smatch match;
    if (std::regex_match(line, match, command)) {
      EXPECT_NE(page_.find("\n.SS \"" + match[1].str()), std::string::npos) << line;
      ++commands;
    } else if (std::regex_match(line, match, option)) {
      EXPECT_NE(page_.find("\\fB" + match[2].str() + "\\fR"), std::string::npos) << line;
      ++options;
    }
  }
  EXPECT_GE(commands, 20);
  EXPECT_GE(options, 50);
  EXPECT_EQ(page_.find("thinpipe work"), std::string::npos);
}

TEST_F(ManualPage, NamesEveryVariableTheProgramReads) {
  const std::regex read("getenv\\(\"([A-Z_]+)\"\\)");
  int count = 0;
  for (const auto* folder : {"src", "apps"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != ".cc") continue;
      const auto source = read_file(entry.path()).take();
      for (std::sregex_iterator match(source.begin(), source.end(), read), end; match != end; ++match, ++count) {
        EXPECT_NE(page_.find("\n.I " + (*match)[1].str()), std::string::npos) << (*match)[1];
      }
    }
  }
  EXPECT_GE(count, 3);
}

TEST_F(ManualPage, IsValidRoff) {
  bool checked = false;
  for (const std::string command : {"groff -man -ww -Tascii", "mandoc -Tlint -Wwarning"}) {
    if (!std::filesystem::exists("/usr/bin/" + command.substr(0, command.find(' ')))) continue;
    const auto outcome = shell(program_, command + " tree/share/man/man1/thinpipe.1");
    EXPECT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err, "") << command;
    checked = true;
  }
  if (!checked) GTEST_SKIP() << "neither groff nor mandoc is on this machine";
}

}  // namespace
}  // namespace thinpipe
