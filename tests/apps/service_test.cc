// `thinpipe service` with a made-up systemctl and loginctl: whether the service also runs while nobody is logged in.
#include <gtest/gtest.h>

#include "apps/running_program.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::RunningProgram;

class Lingering : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_small_run(program_);
    fs::create_directories(program_ / "bin");
    script("systemctl", "exit 0");
    // Files say what loginctl knows and allows.
    script("loginctl",
           "echo \"$*\" >> asked\n"
           "case \"$1\" in\n"
           "  show-user) if [ -e unknown ]; then exit 1; fi\n"
           "    if [ -e lingers ]; then echo Linger=yes; else echo Linger=no; fi ;;\n"
           "  enable-linger) if [ -e forbidden ]; then echo 'Access denied' >&2; exit 1; fi; touch lingers ;;\n"
           "esac");
    path_ = std::getenv("PATH");
    ::setenv("PATH", ((program_ / "bin").string() + ":" + path_).c_str(), 1);
    ::setenv("THINPIPE_SYSTEMD_FOLDER", (program_ / "bin").c_str(), 1);
    ::setenv("XDG_CONFIG_HOME", (program_ / "config").c_str(), 1);
    serving_ = std::make_unique<RunningProgram>(
        program_, Arguments{"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", (program_ / "run").string()});
    ASSERT_TRUE(serving_->wait_for_output("to let machines join")) << serving_->err();
    const auto invited = program_.run({"invite", (program_ / "run").string()}).out;
    invite_ = invited.substr(0, invited.find('\n'));
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    ::unsetenv("THINPIPE_SYSTEMD_FOLDER");
    ::unsetenv("XDG_CONFIG_HOME");
  }

  void script(const std::string& name, const std::string& lines) {
    const auto path = program_ / "bin" / name;
    test::write_file(path, fmt::format("#!/bin/sh\ncd '{}'\n{}\n", (program_ / "").string(), lines));
    fs::permissions(path, fs::perms::owner_all);
  }
  void set(const std::string& fact) { test::write_file(program_ / fact, ""); }
  test::Outcome install(const Arguments& more = {}) {
    Arguments arguments{"service", "install", invite_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return program_.run(arguments);
  }
  std::string status() { return program_.run({"service", "status"}).out; }

  test::Program program_;
  std::string path_, invite_;
  std::unique_ptr<RunningProgram> serving_;
};

constexpr const char* kNot =
    "it runs only while you are logged in; to let it run from the machine's start on: loginctl "
    "enable-linger ";
constexpr const char* kDoes = "it runs from the machine's start on, whether you are logged in or not\n";

TEST_F(Lingering, InstallWithoutIt_PrintsTheOneCommandAndChangesNothing) {
  const auto outcome = install();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(kNot), std::string::npos) << outcome.out;
  EXPECT_FALSE(fs::exists(program_ / "lingers"));
  EXPECT_NE(status().find(kNot), std::string::npos) << status();
  set("lingers");
  EXPECT_NE(status().find(kDoes), std::string::npos) << status();
  EXPECT_NE(install().out.find(kDoes), std::string::npos);
  set("unknown");
  EXPECT_NE(status().find("loginctl does not say whether"), std::string::npos) << status();
}

TEST_F(Lingering, InstallWithLinger_SwitchesItOn) {
  const auto outcome = install({"--linger"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(kDoes), std::string::npos) << outcome.out;
  EXPECT_TRUE(fs::exists(program_ / "lingers"));
  EXPECT_NE(read_file(program_ / "asked").take().find(fmt::format("enable-linger {}\n", ::getuid())),
            std::string::npos);
  const auto removed = program_.run({"service", "remove"});
  EXPECT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_NE(removed.out.find("loginctl disable-linger"), std::string::npos) << removed.out;
  EXPECT_TRUE(fs::exists(program_ / "lingers")) << "other services of the user may need it";
}

TEST_F(Lingering, InstallWithLinger_WhereOnlyRootMay_SaysTheCommand) {
  set("forbidden");
  const auto outcome = install({"--linger"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_NE(outcome.err.find("thinpipe: --linger: thinpipe-"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("as root: loginctl enable-linger "), std::string::npos) << outcome.err;
  EXPECT_NE(status().find(kNot), std::string::npos) << "it is installed";
}

}  // namespace
}  // namespace thinpipe
