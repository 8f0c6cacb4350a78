// Bringing people into a run and coming into one: invite, kick, join, doctor.
#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "base/files.h"
#include "base/result.h"
#include "base/units.h"
#include "call_coordinator.h"
#include "commands.h"
#include "config/config_file.h"
#include "net/addresses.h"
#include "pipeline/progress.h"
#include "run/join.h"
#include "run/worker/worker.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

// ---- for the one who organises a run ----

struct InviteArguments {
  std::string run;
  int64_t uses = 1;
  std::string expires = "7d";
  std::string note;
  std::string revoke;
  bool list = false;
};

int64_t lifetime_s(const std::string& text) {
  const auto duration = parse_duration(text);
  const auto seconds = duration ? duration.value() / std::chrono::seconds(1) : 0;
  if (seconds < 1) throw UserError(fmt::format("--expires {}: needs a time like 90s, 30min, 12h or 7d", text));
  return seconds;
}

void invite(const InviteArguments& arguments) {
  const auto run = find_run(arguments.run).take();
  control::InviteRequest request;
  request.set_uses(arguments.uses);
  request.set_lifetime_s(lifetime_s(arguments.expires));
  request.set_note(arguments.note);
  request.set_id(arguments.revoke);
  request.set_what(!arguments.revoke.empty() ? control::InviteRequest::REVOKE
                   : arguments.list          ? control::InviteRequest::LIST
                                             : control::InviteRequest::CREATE);
  control::InviteReply reply;
  call_coordinator(run, [&](auto& stub, auto* context) { return stub.Invite(context, request, &reply); });
  if (request.what() == control::InviteRequest::CREATE) {
    fmt::print("{}\n", reply.text());
    if (::isatty(STDOUT_FILENO) != 0) {
      fmt::print(stderr,
                 "\nThat line lets {} into the run within {}. Send it to them by a way you trust; on their machine:\n"
                 "  ./thinpipe join <the line>\nTo take it back: thinpipe invite --revoke {}\n",
                 arguments.uses == 1 ? "one machine" : fmt::format("{} machines", arguments.uses), arguments.expires,
                 reply.id());
    }
    return;
  }
  if (reply.invites().empty()) fmt::print("no invites yet\n");
  for (const auto& line : reply.invites()) {
    fmt::print("{}  {} use(s) left  until {}  {}{}\n", line.id(), line.uses_left(), line.expires(), line.state(),
               line.note().empty() ? "" : "  # " + line.note());
  }
}

void kick(const std::string& peer, const std::string& name) {
  const auto run = find_run(name).take();
  control::ControlRequest request;
  request.set_what(control::ControlRequest::KICK);
  request.set_peer(peer);
  control::ControlReply reply;
  call_coordinator(run, [&](auto& stub, auto* context) { return stub.Control(context, request, &reply); });
  fmt::print("{}\n", reply.said());
}

// ---- for the one who joins ----

struct JoinArguments {
  std::string invite;
  std::string name;
  std::vector<std::string> listen;
  std::vector<std::string> announce;
  bool check_only = false;
};

// As an argument, or "-" for standard input: an invite is long, and arguments are seen by other users of the machine.
Invite read_invite(const std::string& argument) {
  std::string text = argument;
  if (argument == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  return parse_invite(text).take();
}

std::string default_name() {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') return "host";
  return host;
}

// The run's progress, asked of the coordinator now and then, while the worker works.
class Watcher {
 public:
  Watcher(CoordinatorAccess access, const RunConfig& config) : config_(config), line_(std::move(access)) {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any sleep;
      while (!sleep.wait_for(lock, stop, std::chrono::milliseconds(500), [] { return false; }) &&
             !stop.stop_requested()) {
        look();
      }
    });
  }

 private:
  void look() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    control::StatusRequest request;
    request.set_events_after(std::numeric_limits<int64_t>::max());  // none of them
    control::RunStatus status;
    const auto stub = line_.stub();
    if (!stub->GetStatus(&context, request, &status).ok()) return;
    const auto& train = config_.train;
    if (!progress_) {
      const auto cuts = link_settings(config_);
      progress_.emplace(ProgressPlan{train.steps, config_.pipeline.stages - 1, config_.model.d, status.step(),
                                     cuts.empty() ? 0 : cuts.front().forward.rate_bits_per_s},
                        stdout, ::isatty(STDOUT_FILENO) != 0, clock_);
      shown_ = status.step();
    }
    if (const auto text = fmt::format("{}: {}", status.phase(), status.why());
        status.phase() == "gathering" && text != said_) {
      progress_->note(text);
      said_ = text;
    }
    const int64_t steps = status.step() - shown_;
    shown_ = status.step();
    if (steps > 0) {
      progress_->step({status.step(), status.loss(), steps * train.microbatches * train.microbatch * train.seq_len,
                       status.step_bytes() * static_cast<uint64_t>(steps)});
    }
  }

  const RunConfig config_;
  CoordinatorLine line_;
  const SystemClock clock_;
  std::optional<Progress> progress_;
  int64_t shown_ = 0;
  std::string said_;
  std::jthread thread_;
};

// First ctrl-C: leaves when the run can spare it; second: at once.
class LeaveOnSignal {
 public:
  LeaveOnSignal() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&signals_, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);  // before other threads are made: they inherit it
    thread_ = std::thread([this] {
      int signal = 0;
      while (::sigwait(&signals_, &signal) == 0 && signal != SIGUSR1) {
        if (leave_.stop_requested()) ::_exit(130);
        fmt::print(stderr, "\nleaving: the run takes a checkpoint first; ctrl-C again leaves at once\n");
        leave_.request_stop();
      }
    });
  }
  ~LeaveOnSignal() {
    ::pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }
  std::stop_token token() const { return leave_.get_token(); }

 private:
  sigset_t signals_{};
  std::stop_source leave_;
  std::thread thread_;
};

void refuse_if_unfit(const std::vector<Check>& checks) {
  fmt::print("{}", render(checks));
  std::fflush(stdout);
  for (const auto& check : checks) {
    if (check.verdict == Verdict::kRefusal)
      throw UserError(fmt::format("{}: {}; {}", check.name, check.text, check.remedy));
  }
}

void show_download(uint64_t have, uint64_t all) {
  if (have != all && ::isatty(STDOUT_FILENO) == 0) return;
  fmt::print("\rthis stage's state: {} of {}{}", format_size(have), format_size(all), have == all ? "\n" : "");
  std::fflush(stdout);
}

void join(const JoinArguments& arguments) {
  LeaveOnSignal signals;
  const auto invite = read_invite(arguments.invite);
  for (const auto& address : arguments.announce) check_address(address).take();
  const auto folder = join_folder(invite.run);
  auto access = earlier_access(invite);
  std::optional<JoinLook> seen;
  JoinChecks checks;
  if (!access || arguments.check_only) {
    seen = look(invite);
    fmt::print("run {}: {}\n", invite.run.substr(0, 8), seen->reply.why());
    checks = check_machine(*seen, folder);
    refuse_if_unfit(checks.checks);
    if (arguments.check_only) return;
    access = enrol(invite, seen->address, arguments.name.empty() ? default_name() : arguments.name);
  }
  fmt::print("joined as {}\n", access->peer);
  std::fflush(stdout);
  WorkerOptions options;
  options.coordinator = *access;
  options.folder = folder;
  options.listen = arguments.listen;
  if (options.listen.empty()) options.listen = {any_address()};
  options.announce = arguments.announce;
  options.machine = checks.machine;
  options.leave = signals.token();
  options.on_download = show_download;
  options.on_run = [&](const RunConfig& config) { return std::make_shared<Watcher>(*access, config); };
  run_worker(options).take();
  fmt::print("left; the files of this machine's part are in {}\n", folder.string());
}

void doctor(const std::string& invite_text, const std::string& config_path) {
  if (!invite_text.empty()) {
    const auto invite = read_invite(invite_text);
    const auto seen = look(invite);
    fmt::print("run {}: {}\n", invite.run.substr(0, 8), seen.reply.why());
    return refuse_if_unfit(check_machine(seen, join_folder(invite.run)).checks);
  }
  const auto config = config_path.empty() ? parse_config("", "the defaults") : load_config(config_path);
  refuse_if_unfit(check_machine_alone(config, config.data.vocab, data_dir()).checks);
}

}  // namespace

void add_join_commands(CLI::App& app) {
  auto invite_arguments = std::make_shared<InviteArguments>();
  auto* invite_command = app.add_subcommand("invite", "a line that lets somebody into a run you serve");
  invite_command->add_option("run", invite_arguments->run, "a run's folder or name; default: the newest run");
  invite_command->add_option("--uses", invite_arguments->uses, "number of machines that may use it")
      ->capture_default_str();
  invite_command->add_option("--expires", invite_arguments->expires, "how long it is valid: 30min, 12h, 7d")
      ->capture_default_str();
  invite_command->add_option("--note", invite_arguments->note, "a note for yourself, for example who it is for");
  invite_command->add_flag("--list", invite_arguments->list, "show the invites instead");
  invite_command->add_option("--revoke", invite_arguments->revoke, "take back the invite with this id instead");
  invite_command->footer(
      "Examples:\n  thinpipe invite                                        for one machine, within seven days\n"
      "  thinpipe invite --uses 3 --expires 2d --note friends\n"
      "  thinpipe invite --list\n"
      "It prints one long line: send it by a way you trust, for it lets its holder in.");
  invite_command->callback([invite_arguments] { invite(*invite_arguments); });

  auto peer = std::make_shared<std::string>(), kick_run = std::make_shared<std::string>();
  auto* kick_command = app.add_subcommand("kick", "remove a worker from a run you serve, for good");
  kick_command->add_option("peer", *peer, "its name, as `thinpipe status` shows it")->required();
  kick_command->add_option("run", *kick_run, "a run's folder or name; default: the newest run");
  kick_command->footer(
      "Examples:\n  thinpipe kick attic                                    from the newest run\n"
      "  thinpipe kick attic 2026-01-31-17-05-09\n"
      "Its certificate is refused from then on, and its stage waits for a spare machine or a new one.");
  kick_command->callback([peer, kick_run] { kick(*peer, *kick_run); });

  auto arguments = std::make_shared<JoinArguments>();
  auto* join_command = app.add_subcommand("join", "host a stage of somebody's run; no open port needed");
  join_command->add_option("invite", arguments->invite, "the line you were sent; - reads it from standard input")
      ->required();
  join_command->add_option("--name", arguments->name, "name of this machine in the run; default: its host name");
  join_command->add_option("--listen", arguments->listen,
                           "address to listen on (HOST or HOST:PORT); default: all interfaces");
  join_command->add_option("--announce", arguments->announce,
                           "address that neighbours can dial (HOST:PORT), for example a forwarded port");
  join_command->add_flag("--check", arguments->check_only, "only check whether this machine can take part");
  join_command->footer(
      "Examples:\n  thinpipe join thinpipe-v1-...                          the line you were sent\n"
      "  thinpipe join thinpipe-v1-... --check                  look first, take no part\n"
      "  thinpipe join - < invite.txt                           not seen by other users of this machine\n"
      "It holds a stage until the run ends; ctrl-C leaves with a checkpoint. What a host can see and do: "
      "docs/joining.md.");
  join_command->callback([arguments] { join(*arguments); });

  auto doctor_invite = std::make_shared<std::string>(), doctor_config = std::make_shared<std::string>();
  auto* doctor_command = app.add_subcommand("doctor", "can this machine take part? before anything is downloaded");
  doctor_command->add_option("invite", *doctor_invite,
                             "invite of the run to check for; default: check for the default model");
  doctor_command->add_option("--config", *doctor_config, "check for this config instead of the default model");
  doctor_command->footer(
      "Examples:\n  thinpipe doctor                                        for the default model\n"
      "  thinpipe doctor --config my.toml\n"
      "  thinpipe doctor thinpipe-v1-...                        for the run of this invite\n"
      "It measures memory, disk and speed, and says of each whether it will do and what would mend it.");
  doctor_command->callback([doctor_invite, doctor_config] { doctor(*doctor_invite, *doctor_config); });
}

}  // namespace thinpipe
