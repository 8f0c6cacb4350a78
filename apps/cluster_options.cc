// What the command line says about machines that the person has a login on: the options of `train` that name them, and
// `launch`, which hands a run over to a cluster.
#include <memory>

#include "arguments.h"
#include "commands.h"

namespace thinpipe {

void add_host_options(Command& command, HostArguments& arguments) {
  const Value address{"HOST:PORT"};
  command.value("--hosts", arguments.file, kFile,
                "train on the machines that this file lists, over ssh: a line HOST or HOST slots=N for each");
  command.value("--host", arguments.names, {"HOST"}, "train on this machine, over ssh; may be repeated");
  command.value(
      "--listen", arguments.listen, address,
      "with hosts: where the coordinator listens (HOST or HOST:PORT); may be repeated; default: all interfaces");
  command.value("--announce", arguments.announce, address,
                "with hosts: further address where they reach the coordinator; may be repeated");
  command.add_flag("--install-remote", arguments.install, "install thinpipe on hosts where it is missing");
  command.value("--install-from", arguments.install_from, {"URL"},
                "git repository to install from; default: where this clone came from");
  command.add_flag("--slurm", arguments.slurm, "inside a Slurm job: a step of the job for each stage");
}

void add_launch(Command& program) {
  auto& launch = program.command("launch", "Hand a run over to a cluster", "Train with others");
  launch.require_subcommand(1);
  launch.footer(R"(Examples:
  $ thinpipe launch slurm my.toml
  $ thinpipe launch slurm my.toml --print       # look first
For machines that you reach with ssh: thinpipe train --hosts.)");
  auto arguments = std::make_shared<SlurmArguments>();
  auto& slurm = launch.command("slurm", "Write a job script for a run and submit it with sbatch");
  slurm.config_argument(arguments->config);
  slurm.set_option(arguments->overrides);
  slurm.run_place_options(arguments->run_dir, arguments->name);
  slurm.value("--time", arguments->time, {"TIME"}, "time limit of the job, as for sbatch; the run continues after it");
  slurm.value("--partition", arguments->partition, {"NAME"}, "partition of the job");
  slurm.number("--cpus", arguments->cpus, 0, 1024, "CPUs of each stage; 0: what the cluster gives");
  slurm.value("--sbatch", arguments->options, {"OPTION"},
              "further option of sbatch, for example --sbatch=--mem=8G; "
              "may be repeated");
  slurm.add_flag("--print", arguments->print, "print the script instead of submitting it");
  slurm.footer(R"(Examples:
  $ thinpipe launch slurm my.toml --time 12:00:00 --cpus 8
  $ thinpipe launch slurm my.toml --print > my.sbatch
  $ thinpipe launch slurm --set pipeline.stages=8 --sbatch=--account=mine --sbatch=--mem-per-cpu=4G
The job has a task per stage. Two minutes before its time limit the run writes a checkpoint and
stops, and the job is queued again, until the run is complete.)");
  slurm.callback([arguments] { launch_slurm(*arguments); });
}

}  // namespace thinpipe
