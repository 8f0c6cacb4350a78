// Every command, option and help text of the program. Groups and commands stand in the order in which help lists them.
#include <filesystem>
#include <memory>

#include "arguments.h"
#include "base/result.h"
#include "base/units.h"
#include "bench/bench.h"
#include "commands.h"
#include "complete.h"
#include "help.h"
#include "lab/lab.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

constexpr auto kTrain = "Train on this machine";
constexpr auto kTogether = "Train with others";
constexpr auto kRuns = "Look at runs";
constexpr auto kModels = "Use a model";
constexpr auto kData = "Data";
constexpr auto kMeasure = "Measure";
constexpr auto kProgram = "This program";

const Value kNumber{"N"};
const Value kAddress{"HOST:PORT"};

template <class Arguments>
void add_dashboard_options(Command& command, Arguments& arguments) {
  command.value("--dashboard", arguments.dashboard, {"ADDR"},
                "where the dashboard listens (HOST or HOST:PORT), or off");
  command.add_flag("--open", arguments.open, "open the dashboard in a browser");
}

void add_watch_flag(Command& command, Shown& shown) {
  command.add_flag("--watch", shown.watch, "redraw every second, until ctrl-C");
}

// An option that may stand without a value takes an empty one for none.
void refuse_empty(const CLI::Option& option, const std::string& value) {
  if (option.count() > 0 && value.empty())
    throw UserError(option.get_name() + ": the value is empty; give one or leave it out");
}

void add_train(Command& program) {
  auto arguments = std::make_shared<TrainArguments>();
  auto& command = program.command("train", "Train a model on this machine", kTrain);
  command.value("CONFIG", arguments->config, kFile,
                "TOML file (docs/config.md), or text to train the default model on: a file or a folder");
  command.set_option(arguments->overrides);
  command.value("--steps", arguments->steps, kNumber, "same as --set train.steps=N");
  command.value("--device", arguments->device, {"DEVICE"}, "cpu, cuda or cuda:N; same as --set train.device=DEVICE");
  command.run_place_options(arguments->run_dir, arguments->name);
  auto* resume = command.value("--resume", arguments->resume, kRun,
                               "resume this run; without RUN: the newest that is not complete");
  resume->expected(0, 1)->default_str(kNewest);
  command.value("--from", arguments->from, kRun,
                "begin a new run with the weights of this run, or of a checkpoint of one");
  command.value("--step", arguments->step, kNumber, "with --from: of its checkpoint of this step; default: the last");
  command.add_flag("--in-process", arguments->in_process, "run all stages as threads of one process, linked in memory");
  add_host_options(command, arguments->on);
  add_dashboard_options(command, *arguments);
  add_guest_options(command, arguments->guest, /*train=*/true);
  command.footer(R"(Examples:
  $ thinpipe train                              # the default model, one process per stage
  $ thinpipe train book.txt                     # the same model on your text, or a folder of texts
  $ thinpipe train --resume first-try --steps 400   # train a run longer, also a complete one
  $ thinpipe train more.txt --from first-try    # a new run with its weights, on other text
Prepares the corpus once, trains, and leaves a run folder with the weights. Ctrl-C writes a
checkpoint and stops; --resume continues, without RUN the run that was stopped last.)");
  command.callback([arguments, resume] {
    refuse_empty(*resume, arguments->resume);
    train(*arguments);
  });
}

void add_plan(Command& program) {
  auto arguments = std::make_shared<PlanArguments>();
  auto& command = program.command("plan", "Show what a run needs of each machine", kTrain);
  command.config_argument(arguments->config);
  command.set_option(arguments->overrides);
  command.json_flag(arguments->json);
  command.value("--measure", arguments->measure, kNumber,
                "also build this stage here, run one step of it on made-up tokens and print the memory it took");
  command.footer(R"(Examples:
  $ thinpipe plan                               # the default model
  $ thinpipe plan my.toml --set pipeline.stages=8
  $ thinpipe plan my.toml --set train.recompute=block
  $ thinpipe plan my.toml --measure 0           # is the plan right?
Prints memory, size of the checkpoint and bytes per step of every stage. Trains nothing.)");
  command.callback([arguments] { plan(*arguments); });
}

void add_serve(Command& program) {
  auto arguments = std::make_shared<ServeArguments>();
  auto& command = program.command("serve", "Coordinate a run that other machines join", kTogether);
  command.config_argument(arguments->config);
  command.set_option(arguments->overrides);
  auto steps = std::make_shared<std::string>();
  command.value("--steps", *steps, kNumber, "same as --set train.steps=N");
  auto* run =
      command.value("--run", arguments->run, kRun, "resume this run; without RUN: the newest that is not complete");
  run->expected(0, 1)->default_str(kNewest);
  command.run_place_options(arguments->run_dir, arguments->name);
  command.value("--listen", arguments->listen, kAddress,
                "address to listen on (HOST or HOST:PORT); may be repeated; default: all interfaces");
  command.value("--announce", arguments->announce, kAddress,
                "further address to put into invites, for example a forwarded port; may be repeated");
  command.add_flag("--join", arguments->join, "this machine holds a stage too");
  command.add_flag("--local", arguments->local, "for train: nobody else joins")->group("");
  add_dashboard_options(command, *arguments);
  command.footer(R"(Examples:
  $ thinpipe serve my.toml --join               # without --join this machine holds no stage
  $ thinpipe serve book.txt --join              # the default model on your text
  $ thinpipe serve my.toml --listen [::]:7700 --announce my.home.example:7700
  $ thinpipe serve --run 2026-01-31-17-05-09    # resume a run
Waits for one machine per stage, then runs the training. Use `thinpipe invite` in another window
to let machines in.)");
  command.callback([arguments, run, steps] {
    refuse_empty(*run, arguments->run);
    if (!steps->empty()) arguments->overrides.push_back("train.steps=" + *steps);
    serve(*arguments);
  });
}

void add_work(Command& program) {
  auto arguments = std::make_shared<WorkArguments>();
  auto& command = program.command("work", "Hold a stage of a run (started by train)", "");
  command.value("--coordinator", arguments->coordinator, kAddress, "address of the coordinator")->required();
  command.value("--folder", arguments->folder, kFolder, "folder of this worker's files, with its identity")->required();
  command.value("--listen", arguments->listen, kAddress, "address to listen on for neighbours");
  command.callback([arguments] { work(*arguments); });
}

void add_invite_and_kick(Command& program) {
  auto arguments = std::make_shared<InviteArguments>();
  auto& invite_command =
      program.command("invite", "Print an invite: one line that lets a machine into a run", kTogether);
  invite_command.run_argument(arguments->run);
  invite_command.value("--uses", arguments->uses, kNumber, "number of machines that may use it");
  invite_command.value("--expires", arguments->expires, {"TIME"}, "how long it is valid: 30min, 12h, 7d");
  invite_command.value("--note", arguments->note, {"TEXT"}, "a note for yourself, for example who it is for");
  invite_command.add_flag("--list", arguments->list, "list the invites instead");
  invite_command.value("--revoke", arguments->revoke, {"ID"}, "revoke the invite with this id instead");
  invite_command.footer(R"(Examples:
  $ thinpipe invite                             # for one machine, valid for seven days
  $ thinpipe invite --uses 3 --expires 2d --note friends
  $ thinpipe invite --list
Whoever has the line can join the run, so send it over a channel that you trust.)");
  invite_command.callback([arguments] { invite(*arguments); });

  auto peer = std::make_shared<std::string>(), run = std::make_shared<std::string>();
  auto& kick_command = program.command("kick", "Remove a worker from a run", kTogether);
  const auto* which = "name of the worker, as `thinpipe status` shows it, or its beginning";
  kick_command.value("PEER", *peer, {"PEER"}, which)->required();
  kick_command.run_argument(*run);
  kick_command.footer(R"(Examples:
  $ thinpipe kick attic                         # from the newest run
  $ thinpipe kick attic 2026-01-31-17-05-09
Revokes its certificate. Its stage goes to a spare machine, or waits for a new one. Use
`thinpipe unkick` to let it in again.)");
  kick_command.callback([peer, run] { kick(*peer, *run); });

  auto& unkick_command = program.command("unkick", "Let a removed worker take part again", kTogether);
  unkick_command.value("PEER", *peer, {"PEER"}, which)->required();
  unkick_command.run_argument(*run);
  unkick_command.footer(R"(Examples:
  $ thinpipe unkick attic                       # in the newest run
  $ thinpipe unkick attic 2026-01-31-17-05-09
It may join again with the same command as before.)");
  unkick_command.callback([peer, run] { unkick(*peer, *run); });
}

void add_join_and_doctor(Command& program) {
  auto arguments = std::make_shared<JoinArguments>();
  auto& join_command = program.command("join", "Hold a stage of somebody's run; needs no open port", kTogether);
  join_command.value("INVITE", arguments->invite, {"INVITE"}, "the line you were sent; - reads it from standard input")
      ->required();
  join_command.value("--name", arguments->name, {"NAME"}, "name of this machine in the run; default: its host name");
  join_command.value("--listen", arguments->listen, kAddress,
                     "address to listen on (HOST or HOST:PORT); may be repeated; default: all interfaces");
  join_command.value("--announce", arguments->announce, kAddress,
                     "further address that neighbours can dial, for example a forwarded port; may be repeated");
  join_command.value(
      "--wait", arguments->wait, {"TIME"},
      "how long to wait for an organiser's machine that was stopped or does not answer: 30min, 2h; 0: end "
      "when it is stopped");
  join_command.add_flag("--keep-model", arguments->keep_model,
                        "when the run is complete, fetch the model: it becomes a run of this machine");
  join_command.add_flag("--check", arguments->check_only, "only check whether this machine can take part");
  join_command.add_flag("--leave-with-input", arguments->leave_with_input,
                        "with -: the invite is the first line; leave at once when standard input ends");
  add_guest_options(join_command, arguments->guest, /*train=*/false);
  join_command.footer(R"(Examples:
  $ thinpipe join thinpipe-v1-...               # the line you were sent
  $ thinpipe join thinpipe-v1-... --check       # check first, do not join
  $ thinpipe join thinpipe-v1-... --keep-model  # and fetch the model at the end
  $ thinpipe join - < invite.txt                # hides the invite from other users of this machine
Holds a stage until the run ends, and waits for its organiser's machine if that is stopped for a
while. Ctrl-C leaves after a checkpoint. docs/joining.md says what the
host of a run and its members can see and do.)");
  join_command.callback([arguments] { join(*arguments); });

  auto invite = std::make_shared<std::string>(), config = std::make_shared<std::string>();
  auto& doctor_command = program.command("doctor", "Check whether this machine can take part in a run", kTogether);
  doctor_command.value("INVITE", *invite, {"INVITE"}, "check for the run of this invite; default: the default model");
  doctor_command.value("--config", *config, kFile, "check for this config; default: the default model");
  doctor_command.footer(R"(Examples:
  $ thinpipe doctor                             # for the default model
  $ thinpipe doctor --config my.toml
  $ thinpipe doctor thinpipe-v1-...             # for the run of this invite
Measures memory, disk and speed. For each it prints whether it is enough and, if not, what would
help. Downloads nothing.)");
  doctor_command.callback([invite, config] { doctor(*invite, *config); });
}

void add_dashboard(Command& program) {
  auto arguments = std::make_shared<DashboardArguments>();
  auto& command = program.command("dashboard", "Show a run in the browser", kRuns);
  command.run_argument(arguments->run);
  command.value("--listen", arguments->listen, kAddress, "address to listen on (HOST or HOST:PORT)");
  command.add_flag("--open", arguments->open, "open it in a browser");
  command.footer(R"(Examples:
  $ thinpipe dashboard                          # the newest run; prints the address
  $ thinpipe dashboard my-run --open
  $ thinpipe dashboard my-run --listen 0.0.0.0:7800
Also shows runs that are over. Where others can reach it, it asks for the run's token, which is in
the address that it prints. Ctrl-C ends it. `train` and `serve` start one by themselves.)");
  command.callback([arguments] { dashboard(*arguments); });

  auto run = std::make_shared<std::string>(), out = std::make_shared<std::string>();
  auto& report_command = program.command("report", "Write what a run did into one HTML file", kRuns);
  report_command.run_argument(*run);
  report_command.value("--out", *out, kFile, "file to write; default: report.html");
  report_command.footer(R"(Examples:
  $ thinpipe report                             # the newest run
  $ thinpipe report my-run --out my-run.html
Holds curves, bytes, where the time went, events and the config. Needs no scripts and no other file.)");
  report_command.callback([run, out] { report(*run, *out); });

  auto& trace_command = program.command("trace", "Write when each stage did what, for Perfetto", kRuns);
  trace_command.run_argument(*run);
  trace_command.value("--out", *out, kFile, "file to write; default: trace.json");
  trace_command.footer(R"(Examples:
  $ thinpipe trace                              # the newest run
  $ thinpipe trace my-run --out my-run.json
Open the file at ui.perfetto.dev or in chrome://tracing. Every tenth step shows its passes.)");
  trace_command.callback([run, out] { trace(*run, *out); });
}

void add_runs(Command& program) {
  auto shown = std::make_shared<Shown>();
  auto& runs = program.command("runs", "List the runs of this machine", kRuns);
  runs.json_flag(shown->json);
  add_watch_flag(runs, *shown);
  runs.footer(R"(Examples:
  $ thinpipe runs
  $ thinpipe runs --watch                       # redraws every second
  $ THINPIPE_DATA_DIR=/big/disk thinpipe runs   # in another data folder
Prints one line per run, the newest last: name, step, loss, validation loss, corpus, time of the
last step, size and state; of a running one also the time left.)");
  runs.callback([shown] { list_runs(*shown); });

  auto run = std::make_shared<std::string>();
  const auto add = [&](const std::string& name, const char* help, const char* effect, auto action) -> Command& {
    auto& command = program.command(name, help, kRuns);
    command.run_argument(*run);
    const auto newest = fmt::format("$ thinpipe {}", name);
    command.footer(
        fmt::format("Examples:\n  {:<46}# the newest run\n  {} 2026-01-31-17-05-09\n{}", newest, newest, effect));
    command.callback(action);
    return command;
  };
  auto& show = add("show", "Show what a run is and how far it has got",
                   "Prints the run's folder, model, progress, checkpoints and weights. The run need not be running.",
                   [run, shown] { show_run(*run, *shown); });
  auto& status = add("status", "Show how a running run is doing",
                     "Asks the run's coordinator: the step, who holds which stage, the links, the latest events.",
                     [run, shown] { print_status(*run, *shown); });
  for (auto* command : {&show, &status}) {
    command->json_flag(shown->json);
    add_watch_flag(*command, *shown);
  }
  add("pause", "Pause a run after its current step", "Its machines stay in the run and wait for `thinpipe resume`.",
      [run] { pause_run(*run); });
  add("resume", "Continue a paused run",
      "The next step begins at once. To resume a run that was stopped, use thinpipe train --resume.",
      [run] { resume_run(*run); });

  auto yes = std::make_shared<bool>(false);
  auto& rm = program.command("rm", "Remove a run and all its files", kRuns);
  rm.value("RUN", *run, kRun, "folder or name of a run")->required();
  rm.add_flag("--yes", *yes, "do not ask");
  rm.footer(R"(Examples:
  $ thinpipe rm 2026-01-31-17-05-09
  $ thinpipe rm first-try --yes
Removes the weights, the checkpoints and the logs. The prepared corpus stays.)");
  rm.callback([run, yes] { remove_run(*run, *yes); });
}

void add_config(Command& program) {
  auto key = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  auto& command = program.command("config", "Explain the keys of a config", kTrain);
  command.value("KEY", *key, {"KEY", Offer::kKeys}, "a key, a section, or the last part of a key; default: all keys");
  command.json_flag(*json);
  command.footer(R"(Examples:
  $ thinpipe config                             # every key with its default
  $ thinpipe config optim.lr
  $ thinpipe config train
Prints what a key means, what it accepts and its default. Use it with --set KEY=VALUE or in a file.)");
  command.callback([key, json] { explain_config(*key, *json); });
}

void model_argument(Command& command, ModelArgument& model, bool computes) {
  command.value("MODEL", model.where, kRun,
                "folder or name of a run, folder of a checkpoint, or a Hugging Face folder; default: the newest run");
  command.value("--step", model.step, kNumber, "use the checkpoint of this step; default: the last one");
  if (computes) command.value("--device", model.device, {"DEVICE"}, "cpu, cuda or cuda:N");
}

void add_generate(Command& program) {
  auto arguments = std::make_shared<GenerateArguments>();
  auto& command = program.command("generate", "Continue a text with a trained model", kModels);
  model_argument(command, arguments->model, /*computes=*/true);
  // An empty prompt is a prompt: the text then begins with nothing.
  auto* prompt =
      command.value("--prompt", arguments->prompt, {.shown = "TEXT", .may_be_empty = true},
                    "start of the text; default: a prompt loop, or standard input if that is not a terminal");
  command.value("--max-tokens", arguments->max_tokens, kNumber, "maximum number of tokens to add");
  command.value("--temperature", arguments->pick.temperature, {"X"}, "randomness; 0 = always the most likely token");
  command.value("--top-k", arguments->pick.top_k, {"K"}, "sample from the K most likely tokens only; 0 = all");
  command.value("--top-p", arguments->pick.top_p, {"P"},
                "sample from the smallest set of tokens with this total probability");
  command.value("--seed", arguments->pick.seed, kNumber, "seed; the same seed gives the same text");
  command.add_flag("--interactive", arguments->interactive,
                   "start a prompt loop even if standard input is not a terminal");
  command.add_flag("--json", arguments->json, "print one JSON object instead of streaming the text");
  command.footer(R"(Examples:
  $ thinpipe generate --prompt "In the beginning"
  $ thinpipe generate my-run --prompt "And he said" --temperature 0.5 --seed 7 --max-tokens 400
  $ thinpipe generate ./llama-hf < prompt.txt
  $ thinpipe generate                           # asks for prompts and remembers the conversation
Streams the text to standard output and prints the speed on standard error.)");
  command.callback([arguments, prompt] {
    arguments->has_prompt = prompt->count() > 0;
    generate(*arguments);
  });
}

void add_eval(Command& program) {
  auto arguments = std::make_shared<EvalArguments>();
  auto& command = program.command("eval", "Measure loss, perplexity and bits per byte of a model", kModels);
  model_argument(command, arguments->model, /*computes=*/true);
  command.value("--text", arguments->text, kFile,
                "a UTF-8 or .jsonl file, or a folder of them; default: the run's validation split");
  command
      .value("--seq-len", arguments->seq_len, kNumber,
             "tokens per window, 1 to 1048576; default: the model's context, at most 2048")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command.json_flag(arguments->json);
  command.footer(R"(Examples:
  $ thinpipe eval                               # the newest run, on its validation split
  $ thinpipe eval my-run --step 100             # an earlier checkpoint
  $ thinpipe eval my-run --text book.txt        # on your own text
  $ thinpipe eval ./llama-hf --text book.txt
The loss is in nats per token. Use bits per byte to compare models with different tokenizers.)");
  command.callback([arguments] { eval(*arguments); });
}

void add_export(Command& program) {
  auto arguments = std::make_shared<ExportArguments>();
  auto& command = program.command("export", "Export a model for transformers or llama.cpp", kModels);
  model_argument(command, arguments->model, /*computes=*/false);
  command
      .value("--format", arguments->format, one_of({"hf", "gguf"}),
             "hf: a Hugging Face folder for transformers; gguf: a file for llama.cpp")
      ->required();
  command.value("--out", arguments->out, kFile, "folder or file to write; default: named after the run");
  command.value("--type", arguments->type, one_of({"f32", "f16", "bf16", "q8_0"}),
                "type of the weights; q8_0 is for gguf only; default: f32 for hf, f16 for gguf");
  auto* max_shard = command.value("--max-shard", arguments->max_shard, {"SIZE"},
                                  "for hf: split the weights into files of at most this size");
  command.footer(R"(Examples:
  $ thinpipe export --format gguf               # the newest run, for llama.cpp
  $ thinpipe export my-run --format gguf --type q8_0 --out my-model.gguf
  $ thinpipe export my-run --step 100 --format hf --out my-model-hf
A subspace model becomes a plain LLaMA that computes the same; one of recipe fast can only become a
folder (hf), with its own code. docs/export.md lists the models that cannot be exported.)");
  command.callback([arguments, max_shard] {
    arguments->has_max_shard = max_shard->count() > 0;
    export_model(*arguments);
  });
}

void add_import(Command& program) {
  auto arguments = std::make_shared<ImportArguments>();
  auto& command = program.command("import", "Start a run from a Hugging Face LLaMA", kModels);
  command.value("FOLDER", arguments->folder, kFolder, "folder with config.json, model.safetensors and tokenizer.model")
      ->required();
  command.value("--mode", arguments->mode, one_of({"dense", "subspace"}),
                "dense: unchanged; subspace: projected, and prints what the projection loses");
  command.set_option(arguments->overrides);
  command.run_dir_option(arguments->run_dir);
  command.footer(R"(Examples:
  $ thinpipe import ./llama-hf --set data.corpus=texts
  $ thinpipe import ./llama-hf --mode subspace --set subspace.rank=64 --set data.corpus=texts
The new run is at step 0. `train --resume` and `serve --run` train it; `eval`, `generate` and
`export` can use it right away.)");
  command.callback([arguments] { import_model(*arguments); });
}

void add_data(Command& program) {
  auto& data = program.command("data", "Prepare, list and inspect corpora and token shards", kData);
  data.require_subcommand(1);
  data.footer(R"(Examples:
  $ thinpipe data prepare kjv
  $ thinpipe data list
  $ thinpipe data inspect kjv
A corpus is prepared once, into the data folder. `thinpipe train` prepares it if necessary.)");

  auto prepare_arguments = std::make_shared<PrepareArguments>();
  auto& prepare = data.command("prepare", "Tokenise a corpus, as `thinpipe train` does before it trains");
  prepare.corpus_argument(prepare_arguments->corpus);
  prepare.value("--vocab", prepare_arguments->vocab, kNumber,
                "vocabulary of the tokenizer; default: that of data.vocab");
  prepare.value("--tokenizer", prepare_arguments->tokenizer, kFile, "sentencepiece .model to use; default: train one");
  prepare.value("--val-fraction", prepare_arguments->val_fraction, {"X"},
                "fraction of the documents to keep for validation; default: that of data.val_fraction");
  prepare.value("--encoding", prepare_arguments->encoding, one_of({"utf-8", "latin-1", "utf-16", "auto"}),
                "encoding of the text; default: that of data.encoding");
  prepare.value("--invalid", prepare_arguments->invalid, one_of({"refuse", "replace", "skip"}),
                "what to do about invalid bytes; default: that of data.invalid");
  prepare.value("--field", prepare_arguments->field, {"NAME"},
                "field of a line of a .jsonl file that holds the text; default: that of data.field");
  prepare.json_flag(prepare_arguments->json);
  prepare.footer(R"(Examples:
  $ thinpipe data prepare kjv
  $ thinpipe data prepare books/ --vocab 16384
  $ thinpipe data prepare more.jsonl --tokenizer mine.model
  $ thinpipe data prepare corpus.jsonl.zst --field body
An interrupted preparation keeps nothing; run the same command again.)");
  prepare.callback([prepare_arguments] { prepare_data(*prepare_arguments); });

  auto json = std::make_shared<bool>(false);
  auto& list = data.command("list", "List the prepared corpora of this machine");
  list.json_flag(*json);
  list.footer(R"(Examples:
  $ thinpipe data list
  $ THINPIPE_DATA_DIR=/mnt/data thinpipe data list --json
Prints one line per corpus: id, tokens, size, vocabulary and source.)");
  list.callback([json] { list_data(*json); });

  auto inspect_arguments = std::make_shared<InspectArguments>();
  auto& inspect = data.command("inspect", "Show what a corpus or a shard holds and how it begins");
  inspect
      .value("CORPUS", inspect_arguments->what, kFile,
             "id of a prepared corpus or its beginning, its folder, its source, or a .bin shard")
      ->required();
  inspect.number("--tokens", inspect_arguments->tokens, 0, 65536, "number of tokens to show of each shard");
  inspect.value("--tokenizer", inspect_arguments->tokenizer, kFile,
                ".model to decode with; default: the one beside the shard");
  inspect.json_flag(inspect_arguments->json);
  inspect.footer(R"(Examples:
  $ thinpipe data inspect kjv
  $ thinpipe data inspect 3f2a91 --tokens 200
  $ thinpipe data inspect fineweb_train_000001.bin --tokenizer gpt2.model
Prints the facts of the corpus and the first tokens of each shard as text.)");
  inspect.callback([inspect_arguments] { inspect_data(*inspect_arguments); });
}

void add_tokenizer(Command& program) {
  auto& tokenizer = program.command("tokenizer", "Train a tokenizer", kData);
  tokenizer.require_subcommand(1);
  tokenizer.footer(R"(Examples:
  $ thinpipe tokenizer train books/ --vocab 8192 --out books.model
  $ thinpipe train --set data.tokenizer=books.model --set data.vocab=8192 --set data.corpus=books/
Tokenizers are sentencepiece models. Debian's package sentencepiece has spm_encode and spm_decode.)");
  auto arguments = std::make_shared<TokenizerArguments>();
  auto& command = tokenizer.command("train", "Train a BPE tokenizer on a corpus and write it to a file");
  command.corpus_argument(arguments->corpus);
  command.value("--vocab", arguments->vocab, kNumber, "number of pieces; default: that of data.vocab");
  command.value("--out", arguments->out, kFile, ".model file to write")->required();
  command.footer(R"(Examples:
  $ thinpipe tokenizer train kjv --vocab 4096 --out kjv.model
  $ thinpipe tokenizer train books/ --vocab 16384 --out books.model
Trains on the training documents of the corpus, as `thinpipe data prepare` does. Use the file with
--set data.tokenizer=FILE.)");
  command.callback([arguments] { train_tokenizer_file(*arguments); });
}

void add_experiment(Command& lab, const std::string& name, const std::string& summary, bool dumps) {
  auto options = std::make_shared<ExperimentOptions>();
  auto& command = lab.command(name, summary);
  command.add_flag("--quick", options->quick, "a small version that takes seconds");
  command.value("--svg", options->svg, kFile, "file for the plots");
  if (dumps) command.value("--dump", options->dump, kFile, "folder for tensors behind the figures (lab/recompute.py)");
  if (name == "collapse") {
    command.value("--elsewhere", options->elsewhere, kFile, "what lab/collapse_elsewhere.py wrote, for more plots");
  }
  command.json_flag(options->json);
  command.footer(fmt::format(R"(Examples:
  $ thinpipe lab {0} --quick
  $ thinpipe lab {0} --svg {0}.svg --json
Prints its question, a table and its answer. Finished parts are kept: an interrupted experiment
continues where it was.)",
                             name));
  command.callback([name, options] { lab_experiment(name, *options); });
}

void add_compare(Command& program) {
  auto options = std::make_shared<CompareOptions>();
  auto& command = program.command("compare", "Compare dense and subspace training over a slow link", kMeasure);
  command.value("--rate", options->rate, {"RATE"}, "bandwidth of the links between stages, for example 80mbit");
  command.add_flag("--quick", options->common.quick, "a small version that takes seconds");
  command.value("--svg", options->common.svg, kFile, "file for the plots");
  command.json_flag(options->common.json);
  command.footer(R"(Examples:
  $ thinpipe compare
  $ thinpipe compare --rate 10mbit --svg compare.svg
Shows loss against wall time: dense without a limit on the links, dense over this rate, and the
subspace model over this rate. Takes about half an hour; an interrupted comparison continues where
it was.)");
  command.callback([options] { compare(*options); });
}

void add_lab(Command& program) {
  auto& lab = program.command("lab", "Run experiments that check the method", kMeasure);
  lab.require_subcommand(1);
  lab.footer(R"(Examples:
  $ thinpipe lab exactness                      # does a cut change anything?
  $ thinpipe lab default --minutes 3            # what does the subspace cost in loss?
Each experiment runs on this machine and prints what it measured.)");
  auto json = std::make_shared<bool>(false);
  auto& exactness = lab.command("exactness", "Compare cut models with an uncut one, and measure the cost of packs");
  exactness.json_flag(*json);
  exactness.footer(R"(Examples:
  $ thinpipe lab exactness
  $ thinpipe lab exactness --json | tail -n 1
Compares the loss and every gradient, in float64 and with each pack.)");
  exactness.callback([json] { lab_exactness(*json); });

  auto options = std::make_shared<LabDefaultOptions>();
  auto& defaults = lab.command("default", "Compare the default model with its dense counterpart");
  defaults.number("--minutes", options->minutes, 0.05, 10000.0, "minutes of training per model");
  defaults.value("--recipe", options->recipe, one_of({"llama", "fast", "both"}),
                 "model.recipe of the subspace model; both: one after the other");
  defaults.set_option(options->settings, "override a config key of all models; may be repeated");
  defaults.add_flag("--same-table", options->same_table,
                    "also train a dense model whose embedding starts with the subspace model's token table");
  defaults.json_flag(options->json);
  defaults.footer(R"(Examples:
  $ thinpipe lab default                        # three minutes each
  $ thinpipe lab default --minutes 30 --json
  $ thinpipe lab default --recipe fast --set model.d=512
Trains both, one after the other, and prints their validation losses and bytes per token.)");
  defaults.callback([options] { lab_default(*options); });

  auto speedrun_options = std::make_shared<SpeedrunOptions>();
  auto& speedrun = lab.command("speedrun", "Steps and time to a dense model's loss over slow links");
  speedrun.number("--seeds", speedrun_options->seeds, 1, 100, "runs per row, with different seeds");
  speedrun.number("--steps", speedrun_options->steps, 25, 1'000'000, "steps of every run");
  speedrun.add_flag("--long", speedrun_options->long_track, "four times the steps");
  speedrun.value("--corpus", speedrun_options->corpus, kFile, "kjv, a text or .jsonl file, or a folder of them");
  speedrun.value("--only", speedrun_options->only, {"ROW"}, "row to run beside the dense one; may be repeated");
  speedrun.value("--row", speedrun_options->rows, {"TEXT"}, "a further row, \"NAME KEY=VALUE ...\"; may be repeated");
  speedrun.set_option(speedrun_options->settings, "override a config key of all rows; may be repeated");
  speedrun.value("--svg", speedrun_options->svg, kFile, "file for a plot of the validation losses");
  speedrun.json_flag(speedrun_options->json);
  speedrun.footer(R"(Examples:
  $ thinpipe lab speedrun                       # two seeds of every row
  $ thinpipe lab speedrun --seeds 1 --steps 100 # a quick look
  $ thinpipe lab speedrun --only llama --row "int8 boundary.pack=int8"
  $ thinpipe lab speedrun --long --only fast    # do the results hold in longer runs?
Finished runs are kept: an interrupted table continues where it was.)");
  speedrun.callback([speedrun_options] { lab_speedrun(*speedrun_options); });

  for (const auto& [name, summary, dumps] : kExperiments) add_experiment(lab, name, summary, dumps);
  add_experiment(lab, "all", "Run all experiments that answer a question", false);
}

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

void add_bench_table_and_wan(Command& bench) {
  auto json = std::make_shared<bool>(false);
  auto table_options = std::make_shared<BenchTableOptions>();
  auto& table = bench.command("table", "Compare the speed of subspace stages and a dense stage");
  table.number("--rounds", table_options->rounds, 1, 1000, "number of measurements");
  table.number("--threads", table_options->threads, 1, 256, "compute threads");
  table.json_flag(*json);
  table.footer(R"(Examples:
  $ thinpipe bench table
  $ thinpipe bench table --threads 4 --rounds 5
Measures a subspace stage with the anchor table, one in the direct form and a dense one in turn, and
prints how much faster each is than the next.)");
  table.callback([table_options, json] { bench_table(*table_options, *json); });

  auto options = std::make_shared<BenchWanOptions>();
  auto& wan = bench.command("wan", "Compare dense and subspace pipelines over slow links");
  wan.number("--d", options->d, 1, 65536, "width of the residual stream");
  wan.number("--rank", options->rank, 1, 65536, "dimensions of the subspace");
  wan.number("--sequences", options->sequences, 1, 65536, "sequences of 256 tokens per microbatch");
  wan.number("--microbatches", options->microbatches, 1, 65536, "microbatches per step");
  wan.number("--steps", options->steps, 1, 65536, "measured steps per run");
  wan.json_flag(*json);
  wan.footer(R"(Examples:
  $ thinpipe bench wan
  $ thinpipe bench wan --d 512 --rank 16 --steps 2
Trains pipelines of two processes over slowed-down links and prints their tokens per second.)");
  wan.callback([options, json] {
    options->program = this_program();
    bench_wan(*options, *json);
  });
}

void add_bench_engine(Command& bench) {
  auto json = std::make_shared<bool>(false);
  auto options = std::make_shared<BenchEngineOptions>();
  auto& engine = bench.command("engine", "Compare the speed of training with PyTorch and with plain products");
  engine.number("--rounds", options->rounds, 1, 1000, "measurements, of which the fastest counts");
  engine.value("--python", options->python, {"FILE"}, "a python3 with PyTorch");
  engine.value("--only", options->only, {"TEXT"}, "only parts whose names contain this: \"d512 L8\", muon");
  engine.add_flag("--torch2", options->torch2,
                  "compare with PyTorch 2.6, in a Debian 13 folder made for it; needs root");
  engine.add_flag("--quick", options->quick, "one tiny model, to see whether it works");
  engine.json_flag(*json);
  engine.footer(R"(Examples:
  $ thinpipe bench engine --json
  $ thinpipe bench engine --python /usr/bin/python3
  $ thinpipe bench engine --torch2               # as root
Trains whole models on one and two threads, dense and subspace, with AdamW and Muon, and the dense
one in PyTorch too.)");
  engine.callback([options, json] { bench_engine(*options, *json); });
}

void add_bench_dashboard(Command& bench) {
  auto json = std::make_shared<bool>(false);
  auto options = std::make_shared<BenchDashboardOptions>();
  auto& command = bench.command("dashboard", "Measure whether watching slows a run");
  command.number("--rounds", options->rounds, 1, 1000, "comparisons, of which the median counts");
  command.number("--seconds", options->seconds, 0.1, 3600, "length of each measurement");
  command.number("--steps", options->steps, 1000, 10'000'000, "steps of a made-up long run");
  command.json_flag(*json);
  command.footer(R"(Examples:
  $ thinpipe bench dashboard
  $ thinpipe bench dashboard --rounds 5 --seconds 20 --json
Compares the speed of a run without a dashboard and with one that four readers and a thousand idle
connections hold on to, and times answers about a run of a million steps.)");
  command.callback([options, json] {
    options->program = this_program();
    bench_dashboard(*options, *json);
  });
}

void add_bench_join_and_data(Command& bench) {
  auto json = std::make_shared<bool>(false);
  auto& join = bench.command("join", "Measure the time from `thinpipe join` to the first step");
  join.json_flag(*json);
  join.footer(R"(Examples:
  $ thinpipe bench join
  $ thinpipe bench join --json | tail -n 1
Serves a run on this machine, lets workers join, and prints the seconds until each took part in a
step.)");
  join.callback([json] { bench_join(this_program(), *json); });

  auto size = std::make_shared<std::string>("1GB");
  auto& data = bench.command("data", "Measure the speed and peak memory of preparing a corpus");
  data.value("--size", *size, {"SIZE"}, "size of the made-up text, at least 1MB");
  data.json_flag(*json);
  data.footer(R"(Examples:
  $ thinpipe bench data
  $ thinpipe bench data --size 100MB --json
Prepares made-up text in a process of its own.)");
  data.callback([size, json] {
    const auto bytes = parse_size(*size);
    if (!bytes) throw UserError("--size: " + bytes.error().message);
    if (bytes.value() < 1'000'000) throw UserError(fmt::format("--size {}: needs at least 1MB", *size));
    bench_data({this_program(), bytes.value()}, *json);
  });
}

void add_bench_sim(Command& bench) {
  auto json = std::make_shared<bool>(false);
  auto options = std::make_shared<BenchSimOptions>();
  auto& sim = bench.command("sim", "Simulate runs in which everything goes wrong");
  sim.number("--seeds", options->seeds, 1, 100'000'000, "runs to simulate");
  sim.number("--from", options->from, 0, 1'000'000'000'000, "the first seed");
  sim.json_flag(*json);
  sim.footer(R"(Examples:
  $ thinpipe bench sim
  $ thinpipe bench sim --seeds 5000 --from 20000 --json | tail -n 1
Processes die and freeze, lines break, disks fail and members lie, all in one thread and in virtual
time. Prints how many runs a minute one core simulates, and what went wrong that must not.)");
  sim.callback([options, json] { bench_sim(*options, *json); });
}

void add_bench_trust(Command& bench) {
  auto json = std::make_shared<bool>(false);
  auto options = std::make_shared<BenchTrustOptions>();
  auto& trust = bench.command("trust", "Attack a run of our own: floods, bad members, frozen processes");
  trust.number("--tries", options->tries, 1, 1000, "freezes of the coordinator");
  trust.number("--seconds", options->seconds, 1, 1000, "of each measurement of the speed");
  trust.json_flag(*json);
  trust.footer(R"(Examples:
  $ thinpipe bench trust
  $ thinpipe bench trust --tries 3 --json | tail -n 1
Serves a run on this machine, lets workers join, and attacks it as strangers and members could.
Prints how much longer a step takes, and the processor time that the attack costs the coordinator
and the attacker, who has no machine of its own here. Takes some minutes.)");
  trust.callback([options, json] {
    options->program = this_program();
    bench_trust(*options, *json);
  });
}

void add_bench(Command& program) {
  auto& bench = program.command("bench", "Run benchmarks that compare two things side by side", kMeasure);
  bench.require_subcommand(1);
  bench.footer(R"(Examples:
  $ thinpipe bench table                        # how fast is a stage?
  $ thinpipe bench wan                          # how much speed do slow links leave?
Each benchmark runs on this machine alone and prints ratios measured within one run.)");
  add_bench_table_and_wan(bench);
  add_bench_engine(bench);
  add_bench_dashboard(bench);
  add_bench_join_and_data(bench);
  add_bench_trust(bench);
  add_bench_sim(bench);
}

void add_help(Command& program) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto& command = program.command("help", "Show the help of a command", kProgram);
  command.value("COMMAND", *words, {"COMMAND"}, "a command, such as train or data prepare")->expected(0, -1);
  command.footer(R"(Examples:
  $ thinpipe help train                         # the same as thinpipe train --help
  $ thinpipe help data prepare
Without a command, prints what there is.)");
  command.callback([&program, words] { print_help(program, *words); });
}

void add_completion(Command& program) {
  auto shell = std::make_shared<std::string>();
  auto& command =
      program.command("completion", "Print a script that completes thinpipe commands in your shell", kProgram);
  command.value("SHELL", *shell, one_of({"bash", "zsh"}), "bash or zsh")->required();
  command.footer(R"(Examples:
  $ source <(thinpipe completion bash)          # in this window; in ~/.bashrc for every window
  $ source <(thinpipe completion zsh)           # the same for zsh, in ~/.zshrc after compinit
  $ thinpipe completion zsh > ~/.zfunc/_thinpipe  # if ~/.zfunc is in $fpath
The tab key then completes commands, options, files, names of runs, and config keys after --set.)");
  command.callback([shell] { fmt::print("{}", completion_script(*shell)); });
}

}  // namespace

void add_commands(Command& program) {
  program.require_subcommand(1);
  program.set_version_flag("--version", "thinpipe " THINPIPE_VERSION, "show the version and exit");
  program.set_help_all_flag("--help-all", "show the help of every command and exit");
  program.footer(R"(Examples:
  $ thinpipe train            # a small model on the King James Bible; a few minutes on two cores
  $ thinpipe runs             # the runs of this machine
  $ thinpipe doctor           # can this machine take part in somebody's run?
Use `thinpipe COMMAND --help` for examples of one command, and `thinpipe --help-all` or
`man thinpipe` for everything.)");
  add_train(program);
  add_init(program, kTrain);
  add_plan(program);
  add_config(program);
  add_serve(program);
  add_invite_and_kick(program);
  add_join_and_doctor(program);
  add_launch(program);
  add_service(program, kTogether);
  add_runs(program);
  add_dashboard(program);
  add_metrics(program, kRuns);
  add_clean(program, kRuns);
  add_generate(program);
  add_eval(program);
  add_export(program);
  add_import(program);
  add_data(program);
  add_tokenizer(program);
  add_compare(program);
  add_lab(program);
  add_bench(program);
  add_help(program);
  add_completion(program);
  add_work(program);
  add_sample(program);
}

}  // namespace thinpipe
