// The program's commands. Each adds itself to the command line; main runs the one that was asked for.
#pragma once

namespace CLI {
class App;
}

namespace thinpipe {

// Thrown by a command that has said all there is to say and ends with this code.
struct ExitWith {
  int code;
};

void add_train_command(CLI::App& app);
void add_serve_command(CLI::App& app);
void add_work_command(CLI::App& app);
void add_run_commands(CLI::App& app);        // runs, show, status, pause, resume
void add_join_commands(CLI::App& app);       // invite, kick, join, doctor
void add_data_commands(CLI::App& app);       // data prepare, list, inspect
void add_tokenizer_commands(CLI::App& app);  // tokenizer train
void add_eval_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_import_command(CLI::App& app);
void add_lab_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_program_commands(CLI::App& app);  // completion, man, --version

}  // namespace thinpipe
