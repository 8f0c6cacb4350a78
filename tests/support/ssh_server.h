// A real sshd on loopback, this test's own: own keys, own port, own config, started as a child. Its sessions see a home
// folder of the test's and a PATH with a few tools only, so that nothing that is installed on this machine counts. The
// test's ssh knows the server by names and uses nothing of the person's who runs the test. Needs Debian's
// openssh-server; why_not() says what is missing, "" when all is there.
#pragma once

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/running_program.h"
#include "base/files.h"
#include "support/free_port.h"
#include "support/shell.h"

namespace thinpipe::test {

class SshServer {
 public:
  // names: of the hosts that the test's ssh reaches here. From now on, `ssh` is the test's one in this process.
  SshServer(const Program& program, const std::vector<std::string>& names) : folder_(program / "ssh"), names_(names) {
    for (const char* tool : {"/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"}) {
      if (!std::filesystem::exists(tool)) {
        why_not_ = fmt::format("there is no {}: the Debian package openssh-server is not installed", tool);
        return;
      }
    }
    std::filesystem::create_directories(home());
    make_keys();
    put_tools();
    write_configs();
    replace_ssh();
    if (why_not_.empty()) listen(program);
  }
  ~SshServer() {
    if (!path_before_.empty()) ::setenv("PATH", path_before_.c_str(), 1);
  }
  SshServer(const SshServer&) = delete;
  SshServer& operator=(const SshServer&) = delete;

  const std::string& why_not() const { return why_not_; }
  // Of everybody who logs in.
  std::filesystem::path home() const { return folder_ / "home"; }
  // Puts the program where it is looked for.
  void install_program() const {
    std::filesystem::create_directories(home() / ".local/bin");
    std::filesystem::create_symlink(THINPIPE_PROGRAM, home() / ".local/bin/thinpipe");
  }

  // Live processes whose data folder is below home(): the workers that were started over ssh.
  std::vector<pid_t> workers() const {
    std::vector<pid_t> pids;
    for (const auto& info : all_processes()) {
      std::ifstream file(fmt::format("/proc/{}/environ", info.pid), std::ios::binary);
      const std::string text(std::istreambuf_iterator<char>(file), {});
      const bool joins = std::find(info.arguments.begin(), info.arguments.end(), "join") != info.arguments.end();
      if (joins && info.state != 'Z' && text.find("THINPIPE_DATA_DIR=" + home().string()) != std::string::npos) {
        pids.push_back(info.pid);
      }
    }
    return pids;
  }

 private:
  void must(const std::string& command) {
    if (!why_not_.empty()) return;
    const auto [status, text] = output_of(command + " 2>&1");
    if (status != 0) why_not_ = fmt::format("{}: {}", command, text);
  }

  void make_keys() {
    for (const char* name : {"host_key", "client_key"}) {
      must(fmt::format("ssh-keygen -q -t ed25519 -N '' -C test -f '{}'", (folder_ / name).string()));
    }
    must(fmt::format("cp '{0}/client_key.pub' '{0}/authorized_keys'", folder_.string()));
    if (::geteuid() == 0) must("mkdir -p /run/sshd");
  }

  void put_tools() const {
    std::filesystem::create_directories(folder_ / "bin");
    for (const char* tool : {"sh", "git", "mkdir", "ln"}) {
      std::filesystem::create_symlink(std::filesystem::path("/usr/bin") / tool, folder_ / "bin" / tool);
    }
  }

  // What decides the last bits of products, and what a sanitizer needs, is the same there as here.
  static std::string shared_environment() {
    std::string words;
    for (char** one = environ; *one != nullptr; ++one) {
      const std::string variable = *one;
      const bool shared = std::any_of(kShared.begin(), kShared.end(),
                                      [&](std::string_view start) { return variable.starts_with(start); });
      if (shared && variable.find_first_of(" \t\n\"'") == std::string::npos) words += " " + variable;
    }
    return words;
  }

  void write_configs() {
    const int port = free_port();
    const auto folder = folder_.string();
    write_file(folder_ / "sshd_config",
               fmt::format("Port {0}\nListenAddress 127.0.0.1\nHostKey {1}/host_key\nPidFile none\nUsePAM no\n"
                           "AuthorizedKeysFile {1}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
                           "KbdInteractiveAuthentication no\nMaxStartups 100\nPermitRootLogin prohibit-password\n"
                           "SetEnv HOME={1}/home PATH={1}/bin{2}\n",
                           port, folder, shared_environment()));
    const auto key = read_file(folder_ / "host_key.pub");
    write_file(folder_ / "known_hosts", fmt::format("[127.0.0.1]:{} {}", port, key ? key.value() : ""));
    std::string names;
    for (const auto& name : names_) names += " " + name;
    const auto* user = ::getpwuid(::geteuid());
    write_file(folder_ / "config",
               fmt::format("Host{}\n  Port {}\nHost closed\n  Port {}\nHost *\n  HostName 127.0.0.1\n  User {}\n"
                           "  IdentityFile {}/client_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {}/known_hosts\n"
                           "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n",
                           names, port, free_port(), user == nullptr ? "root" : user->pw_name, folder, folder));
  }

  void replace_ssh() {
    std::filesystem::create_directories(folder_ / "client");
    const auto ssh = folder_ / "client" / "ssh";
    write_file(ssh, fmt::format("#!/bin/sh\nexec /usr/bin/ssh -F {}/config \"$@\"\n", folder_.string()));
    std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
    path_before_ = std::getenv("PATH");
    ::setenv("PATH", fmt::format("{}:{}", (folder_ / "client").string(), path_before_).c_str(), 1);
  }

  void listen(const Program& program) {
    const auto command = fmt::format("exec /usr/sbin/sshd -D -e -f {}/sshd_config", folder_.string());
    server_ = std::make_unique<RunningProgram>(program, Arguments{"-c", command}, std::filesystem::path(),
                                               RunOptions{.program = "/bin/sh"});
    server_->wait_until("sshd listens", [&] {
      return server_->err().find("Server listening") != std::string::npos || !server_->running();
    });
    if (!server_->running()) why_not_ = "sshd does not start: " + server_->err();
  }

  static constexpr std::array<std::string_view, 5> kShared{"OPENBLAS_", "OMP_", "ASAN_", "UBSAN_", "TSAN_"};

  const std::filesystem::path folder_;
  const std::vector<std::string> names_;
  std::string why_not_;
  std::string path_before_;
  std::unique_ptr<RunningProgram> server_;
};

}  // namespace thinpipe::test
