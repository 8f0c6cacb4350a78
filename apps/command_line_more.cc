// The declarations of init, metrics and clean: command_line.cc would be too long with them.
#include <memory>
#include <string>

#include "arguments.h"
#include "commands.h"

namespace thinpipe {

void add_init(Command& program, const std::string& group) {
  auto arguments = std::make_shared<InitArguments>();
  auto& command = program.command("init", "Write a config for your text, machines and time", group);
  command.value("FILE", arguments->file, kFile, "config to write, NAME.toml");
  command.value("--text", arguments->text, kFile, "kjv, a text or .jsonl file, or a folder of them");
  command.value("--machines", arguments->machines, {"N"}, "number of machines");
  command.value("--line", arguments->line, {"RATE"}, "what the slowest of them can send, for example 10mbit");
  command.value("--time", arguments->time, {"TIME"}, "how long the training may take: 30min, 4h, 3d");
  command.value("--for", arguments->purpose, one_of({"export", "loss"}),
                "a model for other programs, or the lowest loss in that time");
  command.add_flag("--force", arguments->force, "replace the file if it exists");
  command.footer(R"(Examples:
  $ thinpipe init                               # asks five questions, writes thinpipe.toml
  $ thinpipe init my.toml --text texts/ --machines 3 --line 10mbit --time 4h --for export
Asks for what no option says. Measures this machine for some seconds, and prints about how long the
training takes, and memory and bytes per machine. `thinpipe plan` says more about a config.)");
  command.callback([arguments] { init(*arguments); });
}

void add_metrics(Command& program, const std::string& group) {
  auto arguments = std::make_shared<MetricsArguments>();
  auto& command = program.command("metrics", "Write a run's curves for a table program or TensorBoard", group);
  command.run_argument(arguments->run);
  command
      .value("--format", arguments->format, one_of({"csv", "tensorboard"}),
             "csv: a table with a line per step; tensorboard: an event file")
      ->required();
  command.value("--out", arguments->out, kFile, "file to write; default: named after the run");
  command.footer(R"(Examples:
  $ thinpipe metrics --format csv               # the newest run
  $ thinpipe metrics my-run --format csv --out my-run.csv
  $ thinpipe metrics my-run --format tensorboard --out logs/my-run.tfevents
Writes losses, learning rate, gradient norm, tokens, bytes and times. TensorBoard reads only files
with tfevents in their names.)");
  command.callback([arguments] { export_metrics(*arguments); });
}

void add_clean(Command& program, const std::string& group) {
  auto yes = std::make_shared<bool>(false);
  auto& command = program.command("clean", "Remove what no run needs any more", group);
  command.add_flag("--yes", *yes, "do not ask");
  command.footer(R"(Examples:
  $ thinpipe clean                              # lists it, and asks
  $ thinpipe clean --yes
Removes the earlier checkpoints of complete runs and their stages' copies, runs that failed before
their first step, and what was left half-made. The newest weights of every run stay.)");
  command.callback([yes] { clean(*yes); });
}

void add_sample(Command& program) {
  auto run = std::make_shared<std::string>();
  auto step = std::make_shared<uint64_t>(0);
  auto& command = program.command("sample", "Write a sample of a run that goes on (started by train)", "");
  command.value("RUN", *run, {"RUN"}, "folder of the run")->required();
  command.number("--step", *step, 1, uint64_t{1} << 40, "step of the checkpoint");
  command.callback([run, step] { sample(*run, static_cast<int64_t>(*step)); });
}

}  // namespace thinpipe
