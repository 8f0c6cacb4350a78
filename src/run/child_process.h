// A program that this process has started, with its output in a log file. It is killed when this process ends, however
// it ends.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// How a child ended.
struct ChildEnd {
  int exit_code = -1;  // -1: by a signal
  int signal = 0;
};

// What a child does not take over from this process.
struct ChildSetting {
  int input = -1;             // a descriptor, its standard input; default: none
  std::string variable = {};  // "NAME=VALUE" in its environment; empty: none
};

class ChildProcess {
 public:
  // Appends its standard output and error to `log`. It has its own process group: a ctrl-C in the terminal does not
  // reach it.
  static Result<ChildProcess> start(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                                    const std::filesystem::path& log, const ChildSetting& setting = {});
  // Kills it if it still runs.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  pid_t pid() const { return pid_; }
  // Does not wait; nullopt while it runs.
  std::optional<ChildEnd> poll();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  pid_t pid_ = -1;
  std::optional<ChildEnd> end_;
};

// Returns why a command ended: the last line of its log that begins with "thinpipe: ", without this prefix. Empty if
// there is no such line.
std::string last_words(const std::filesystem::path& log);

}  // namespace thinpipe
