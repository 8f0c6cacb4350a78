// Runs peer_program, or any other command, as a child of the test.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/result.h"

extern char** environ;

namespace thinpipe::test {

// Killed when destroyed, unless it has ended.
class PeerProcess {
 public:
  // Looks the command up in the PATH and reads its standard output and error.
  explicit PeerProcess(std::vector<std::string> command) {
    int ends[2];
    TP_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "pipe2: {}", std::strerror(errno));
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    std::vector<char*> argv;
    for (auto& argument : command) argv.push_back(argument.data());
    argv.push_back(nullptr);
    if (const int fault = ::posix_spawnp(&child_, argv[0], &actions, nullptr, argv.data(), environ); fault != 0) {
      child_ = -1;
      why_not_ = command.front() + ": " + std::strerror(fault);
    }
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    output_ = ::fdopen(ends[0], "r");
  }
  ~PeerProcess() {
    kill();
    std::fclose(output_);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Without the line break; "" at the end.
  std::string line() {
    std::string line;
    for (int c = std::fgetc(output_); c != EOF && c != '\n'; c = std::fgetc(output_)) line += static_cast<char>(c);
    return line;
  }

  void kill() {
    if (child_ < 0) return;
    ::kill(child_, SIGKILL);
    (void)wait();
  }

  // "" when it exits 0, else its first unread line or a description of the failure.
  std::string wait() {
    if (child_ < 0) return why_not_;
    const auto said = line();
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
    return said.empty() ? "ended with status " + std::to_string(status) : said;
  }

 private:
  pid_t child_ = -1;
  std::string why_not_;
  std::FILE* output_ = nullptr;
};

}  // namespace thinpipe::test
