// What the program can do: what each command is given (command_line.cc declares it) and the function that does it. The
// second half needs libtorch: the small program, which has none, throws NeedsTorch there (docs/design/0010).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/pick_options.h"
#include "run/guest.h"

namespace thinpipe {

class Command;

// Declares all commands.
void add_commands(Command& program);
// Those of service_command.cc, in that group of the help.
void add_service(Command& program, const std::string& group);
// What the owner of this machine allows: options of join, train and service.
void add_guest_options(Command& command, GuestOptions& options, bool train);
// Declares the options of `train` that name machines.
struct HostArguments;
void add_host_options(Command& command, HostArguments& arguments);
// Declares `launch`.
void add_launch(Command& program);
// These stand in command_line_more.cc. `group`: the title under which help lists them.
void add_init(Command& program, const std::string& group);
void add_metrics(Command& program, const std::string& group);
void add_clean(Command& program, const std::string& group);
void add_sample(Command& program);

// Thrown by a command that has printed all there is to say and ends with this code.
struct ExitWith {
  int code;
};
// Thrown by the small program: the full one must run this command.
struct NeedsTorch {};

// ---- without libtorch ----

// json: also as JSON. watch: again every second, until ctrl-C.
struct Shown {
  bool json = false;
  bool watch = false;
};
void list_runs(const Shown& shown);
void show_run(const std::string& run, const Shown& shown);
void remove_run(const std::string& run, bool yes);
void clean(bool yes);
void print_status(const std::string& run, const Shown& shown);
void pause_run(const std::string& run);
void resume_run(const std::string& run);

struct DashboardArguments {
  std::string run;
  std::string listen = "127.0.0.1";
  bool open = false;
};
// Returns only if it cannot start.
void dashboard(const DashboardArguments& arguments);
void report(const std::string& run, const std::string& out);
void trace(const std::string& run, const std::string& out);
struct MetricsArguments {
  std::string run;
  std::string format;
  std::string out;
};
void export_metrics(const MetricsArguments& arguments);

struct InviteArguments {
  std::string run;
  int64_t uses = 1;
  std::string expires = "7d";
  std::string note;
  std::string revoke;
  bool list = false;
};
void invite(const InviteArguments& arguments);
void kick(const std::string& peer, const std::string& run);
void unkick(const std::string& peer, const std::string& run);

// What a config key means; empty: all of them. Also a section, or the last part of a key.
void explain_config(const std::string& key, bool json);

struct PrepareArguments {
  std::string corpus;
  std::string vocab;
  std::string tokenizer;
  std::string val_fraction;
  std::string encoding;
  std::string invalid;
  std::string field;
  bool json = false;
};
void prepare_data(const PrepareArguments& arguments);
void list_data(bool json);

struct InspectArguments {
  std::string what;
  std::string tokenizer;
  uint64_t tokens = 64;
  bool json = false;
};
void inspect_data(const InspectArguments& arguments);

struct TokenizerArguments {
  std::string corpus;
  std::string vocab;
  std::string out;
};
void train_tokenizer_file(const TokenizerArguments& arguments);

struct SlurmArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string run_dir;
  std::string name;
  std::string time, partition;
  int64_t cpus = 0;                  // per stage; 0: Slurm's default
  std::vector<std::string> options;  // further ones of sbatch
  bool print = false;
};
void launch_slurm(const SlurmArguments& arguments);

// ---- with libtorch ----

// `train` on machines that the person has a login on (cluster_options.cc).
struct HostArguments {
  std::string file;
  std::vector<std::string> names;
  std::vector<std::string> listen, announce;
  bool install = false;
  std::string install_from;
  bool slurm = false;  // this process is in a Slurm job; a step of it holds each stage
};

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string steps;
  std::string device;
  std::string run_dir;
  std::string name;
  std::string resume;  // a run; empty: start a new one
  std::string from;    // a run or a checkpoint of one, whose weights a new run begins with
  std::string step;    // of that run; empty: the last
  bool in_process = false;
  HostArguments on;
  std::string dashboard = "127.0.0.1";
  bool open = false;
  GuestOptions guest;
};
void train(const TrainArguments& arguments);

// Empty: it asks.
struct InitArguments {
  std::string file = "thinpipe.toml";
  std::string text;
  std::string machines;
  std::string line;
  std::string time;
  std::string purpose;
  bool force = false;
};
void init(const InitArguments& arguments);

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string measure;  // number of a stage; empty: none
  bool json = false;
};
void plan(const PlanArguments& arguments);

struct ServeArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string run;
  std::string run_dir;
  std::string name;
  std::vector<std::string> listen;
  std::vector<std::string> announce;
  bool local = false;
  bool join = false;
  std::string dashboard = "127.0.0.1";
  bool open = false;
};
void serve(const ServeArguments& arguments);

struct WorkArguments {
  std::string coordinator;
  std::string folder;
  std::string listen = "127.0.0.1";
};
void work(const WorkArguments& arguments);

// For the process that watches over a run: a sample of the model, from the checkpoint of that step.
void sample(const std::string& run, int64_t step);

struct JoinArguments {
  std::string invite;
  std::string name;
  std::vector<std::string> listen;
  std::vector<std::string> announce;
  std::string wait = "12h";
  bool check_only = false;
  GuestOptions guest;
  bool leave_with_input = false;
  bool keep_model = false;
};
void join(const JoinArguments& arguments);
// For the run of that invite, else for that config, else for the default model.
void doctor(const std::string& invite, const std::string& config);

// A run, a checkpoint of one, or a Hugging Face folder.
struct ModelArgument {
  std::string where;  // empty: the newest run
  std::string step;   // empty: the run's last
  std::string device = "cpu";
};

struct EvalArguments {
  ModelArgument model;
  std::string text;
  int64_t seq_len = 0;  // 0: the model's context
  bool json = false;
};
void eval(const EvalArguments& arguments);

struct GenerateArguments {
  ModelArgument model;
  std::string prompt;
  bool has_prompt = false;
  PickOptions pick;
  int64_t max_tokens = 200;
  bool interactive = false;
  bool json = false;
};
void generate(const GenerateArguments& arguments);

struct ExportArguments {
  ModelArgument model;
  std::string format;
  std::string out;
  std::string type;
  std::string max_shard = "5GB";
  bool has_max_shard = false;
};
void export_model(const ExportArguments& arguments);

struct ImportArguments {
  std::string folder;
  std::string mode = "dense";
  std::vector<std::string> overrides;
  std::string run_dir;
};
void import_model(const ImportArguments& arguments);

// lab/lab.h and bench/bench.h have the rest.

}  // namespace thinpipe
