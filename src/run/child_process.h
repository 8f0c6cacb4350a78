// A program started beside this one, its output going to a log file. It is killed when this process ends, however that
// happens.
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

class ChildProcess {
 public:
  // Appends standard output and error to `log`. In a process group of its own: a ctrl-C in the terminal is not for it.
  static Result<ChildProcess> start(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                                    const std::filesystem::path& log);
  // Kills it if it still runs.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  pid_t pid() const { return pid_; }
  bool running() const { return pid_ > 0 && !end_; }
  // Does not wait; nothing while it runs.
  std::optional<ChildEnd> poll();
  void kill(int signal);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  pid_t pid_ = -1;
  std::optional<ChildEnd> end_;
};

// The last line of a log that begins with "thinpipe: ", without that: what a command said before it ended. Empty if
// there is none.
std::string last_words(const std::filesystem::path& log);

}  // namespace thinpipe
