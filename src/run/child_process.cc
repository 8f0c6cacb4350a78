#include "run/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/files.h"

namespace thinpipe {

Result<ChildProcess> ChildProcess::start(const std::filesystem::path& program,
                                         const std::vector<std::string>& arguments, const std::filesystem::path& log,
                                         const ChildSetting& setting) {
  const Fd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!output) return Error{fmt::format("cannot write {}: {}", log.string(), std::strerror(errno))};
  const auto name = program.string();
  std::vector<char*> argv{const_cast<char*>(name.c_str())};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const auto name_of_variable = setting.variable.substr(0, setting.variable.find('=') + 1);
  std::vector<char*> environment;
  for (char** one = environ; *one != nullptr; ++one) {
    if (name_of_variable.empty() || !std::string_view(*one).starts_with(name_of_variable)) environment.push_back(*one);
  }
  if (!setting.variable.empty()) environment.push_back(const_cast<char*>(setting.variable.c_str()));
  environment.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return Error{fmt::format("cannot start {}: {}", name, std::strerror(errno))};
  if (pid == 0) {
    // Only calls that are allowed between fork and exec.
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
    const int input = setting.input >= 0 ? setting.input : ::open("/dev/null", O_RDONLY);
    if (::dup2(input, STDIN_FILENO) >= 0 && ::dup2(output.get(), STDOUT_FILENO) >= 0 &&
        ::dup2(output.get(), STDERR_FILENO) >= 0) {
      ::execve(argv[0], argv.data(), environment.data());
    }
    ::_exit(127);
  }
  return ChildProcess(pid);
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0 || end_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)), end_(other.end_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(end_, other.end_);
  return *this;
}

std::optional<ChildEnd> ChildProcess::poll() {
  if (end_ || pid_ <= 0) return end_;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  end_ = WIFEXITED(status) ? ChildEnd{WEXITSTATUS(status), 0} : ChildEnd{-1, WTERMSIG(status)};
  return end_;
}

std::string last_words(const std::filesystem::path& log) {
  const auto text = read_file(log);
  if (!text) return "";
  constexpr std::string_view kStart = "thinpipe: ";
  const std::string_view all = text.value();
  for (size_t end = all.size(); end > 0;) {
    const size_t begin = all.rfind('\n', end - 1);
    const size_t first = begin == std::string_view::npos ? 0 : begin + 1;
    const auto line = all.substr(first, end - first);
    if (line.starts_with(kStart)) return std::string(line.substr(kStart.size(), line.find('\n') - kStart.size()));
    if (first == 0) break;
    end = first - 1;
  }
  return "";
}

}  // namespace thinpipe
