// A Slurm cluster on loopback, this test's own: a controller and two nodes, all on this machine, with their own ports,
// folders and config, started as children. Authentication is "none" instead of munge, which needs a daemon of the
// system. Needs root and Debian's slurmctld, slurmd and slurm-client; why_not() says what is missing, "" when all is
// there.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

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

class SlurmCluster {
 public:
  static constexpr int kNodes = 2;

  // From now on, the tools of Slurm in this process and its children mean this cluster.
  explicit SlurmCluster(const Program& program) : folder_(program / "slurm") {
    if (::geteuid() != 0) why_not_ = "slurmd needs root";
    for (const char* tool : {"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/sbatch"}) {
      if (std::filesystem::exists(tool)) continue;
      why_not_ =
          fmt::format("there is no {}: the Debian packages slurmctld, slurmd and slurm-client are not installed", tool);
    }
    if (!why_not_.empty()) return;
    std::filesystem::create_directories(folder_ / "state");
    write_file(folder_ / "cgroup.conf", "");
    write_config();
    ::setenv("SLURM_CONF", (folder_ / "slurm.conf").c_str(), 1);
    start(program, "slurmctld -D");
    for (int i = 1; i <= kNodes; ++i) start(program, fmt::format("slurmd -D -N n{}", i));
    parts_.front()->wait_until("all nodes are idle", [&] {
      return said_by("sinfo --noheader --Format=nodes --states=idle").find(fmt::format("{}", kNodes)) == 0;
    });
  }
  ~SlurmCluster() {
    if (parts_.empty()) return;
    (void)said_by("scancel --me");
    parts_.front()->wait_until("no job is left",
                               [&] { return said_by("squeue --noheader --states=all") == "" || jobs_over(); });
    for (auto& part : parts_) part->signal(SIGTERM);
    for (auto& part : parts_) (void)part->wait();
    ::unsetenv("SLURM_CONF");
  }
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  const std::string& why_not() const { return why_not_; }
  // "PENDING", "RUNNING", "COMPLETED"...
  std::string state_of(const std::string& job) const {
    const auto text = said_by("scontrol show job -o " + job);
    constexpr std::string_view kKey = "JobState=";
    const auto at = text.find(kKey);
    return at == std::string::npos ? "" : text.substr(at + kKey.size(), text.find(' ', at) - at - kKey.size());
  }
  static std::string said_by(const std::string& command) { return output_of(command + " 2>&1").second; }

 private:
  bool jobs_over() const { return said_by("squeue --noheader --states=running,completing").empty(); }

  void write_config() const {
    const auto host = said_by("hostname -s");
    auto text = fmt::format(
        "ClusterName=test\nSlurmctldHost={0}(127.0.0.1)\nSlurmctldPort={1}\nSlurmUser=root\nAuthType=auth/none\n"
        "CredType=cred/none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nStateSaveLocation={2}/state\n"
        "SlurmdSpoolDir={2}/spool-%n\nSlurmctldPidFile={2}/slurmctld.pid\nSlurmdPidFile={2}/slurmd-%n.pid\n"
        "ReturnToService=2\nSlurmdParameters=config_overrides\nKillWait=5\n",
        host.substr(0, host.find('\n')), free_port(), folder_.string());
    for (int i = 1; i <= kNodes; ++i) {
      text += fmt::format("NodeName=n{} NodeAddr=127.0.0.1 NodeHostname={} Port={} CPUs=2\n", i,
                          host.substr(0, host.find('\n')), free_port());
    }
    write_file(folder_ / "slurm.conf", text + "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n");
  }

  void start(const Program& program, const std::string& command) {
    parts_.push_back(std::make_unique<RunningProgram>(program, Arguments{"-c", "exec /usr/sbin/" + command},
                                                      std::filesystem::path(), RunOptions{.program = "/bin/sh"}));
  }

  const std::filesystem::path folder_;
  std::string why_not_;
  std::vector<std::unique_ptr<RunningProgram>> parts_;
};

}  // namespace thinpipe::test
