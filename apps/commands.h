// The program's commands. Each adds itself to the command line; main runs the one that was asked for.
#pragma once

namespace CLI {
class App;
}

namespace thinpipe {

void add_train_command(CLI::App& app);
void add_lab_command(CLI::App& app);
void add_bench_command(CLI::App& app);

}  // namespace thinpipe
