// Commands that look at runs or talk to their coordinators, without libtorch: runs, show, status, pause, resume,
// invite, kick, unkick, rm.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/client_context.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/say.h"
#include "base/units.h"
#include "commands.h"
#include "config/config_file.h"
#include "run/coordinator_line.h"
#include "run/run_files.h"
#include "run/samples.h"
#include "run_folders.h"
#include "run_summary.h"
#include "store/checkpoints.h"
#include "watch.h"

namespace thinpipe {
namespace {

// A coordinator that is gone refuses at once; one that trains on a busy machine may be slow to answer.
constexpr auto kCallTimeout = std::chrono::seconds(30);
constexpr int64_t kMostShownStages = 1000;

// Throws UserError, beginning with `name` if nobody answers.
template <class Call>
void call(const CoordinatorAccess& access, const std::string& name, const Call& make) {
  CoordinatorLine line(access);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  const grpc::Status status = make(*line.stub(), &context);
  if (status.ok()) return;
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    throw UserError(fmt::format("{}: its coordinator does not answer: {}", name, one_line(status.error_message())));
  }
  throw UserError(one_line(status.error_message()));
}

// Calls the coordinator of a run of this machine, as its operator: make(stub, context) makes the call and returns its
// status. Throws UserError if the run is not being served, or with the coordinator's error.
template <class Call>
void call_coordinator(const std::filesystem::path& run, const Call& make) {
  const auto place = read_coordinator_place(run);
  if (!place) {
    const auto state = state_of(run);
    if (state == "complete")
      throw UserError(fmt::format("{}: this run is complete and no longer served", run.string()));
    throw UserError(
        fmt::format("{}: this run is not being served ({}); start it with thinpipe train --resume or "
                    "thinpipe serve --run",
                    run.string(), state));
  }
  call(operator_access(run, place.value().address), run.string(), make);
}

void send_control(const std::string& name, control::ControlRequest::What what, const std::string& peer = "") {
  const auto run = find_run(name).take();
  control::ControlRequest request;
  request.set_what(what);
  request.set_peer(peer);
  control::ControlReply reply;
  call_coordinator(run, [&](auto& stub, auto* context) { return stub.Control(context, request, &reply); });
  say("{}\n", reply.said());
}

int64_t lifetime_s(const std::string& text) {
  const auto duration = parse_duration(text);
  const auto seconds = duration ? duration.value() / std::chrono::seconds(1) : 0;
  if (seconds < 1) throw UserError(fmt::format("--expires {}: needs a time like 90s, 30min, 12h or 7d", text));
  return seconds;
}

// On a narrow terminal without what is missed least: its size, then the time, then the corpus.
std::string line_of(const RunSummary& run, size_t widest, size_t room) {
  std::vector<std::string> parts{fmt::format("{:<{}}", run.name, widest),
                                 progress_text(run),
                                 one_line(run.corpus),
                                 run.changed,
                                 format_size(run.bytes),
                                 run.state};
  auto line = fmt::format("{}", fmt::join(parts, "  "));
  for (const size_t part : {4, 3, 2}) {
    if (line.size() <= room) break;
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(part));
    line = fmt::format("{}", fmt::join(parts, "  "));
  }
  return folded(line, room);
}

// "17:05:31", or "2026-01-31 17:05" of another day: local time, from that of an event.
std::string local_time(const std::string& utc) {
  std::tm parts{};
  if (::strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr) return one_line(utc);
  const auto then = fmt::localtime(::timegm(&parts));
  const auto now = fmt::localtime(std::time(nullptr));
  const bool today = then.tm_year == now.tm_year && then.tm_yday == now.tm_yday;
  return today ? fmt::format("{:%H:%M:%S}", then) : fmt::format("{:%Y-%m-%d %H:%M}", then);
}

}  // namespace

void list_runs(const Shown& shown) {
  if (shown.watch) return watch([&] { list_runs({.json = shown.json}); });
  const auto runs = known_runs();
  const auto joined = joined_runs();
  if (runs.empty() && joined.empty()) say("no runs yet; `thinpipe train` starts one\n");
  std::vector<RunSummary> summaries;
  size_t widest = 0;
  for (const auto& run : runs) {
    summaries.push_back(summary_of(run));
    widest = std::max(widest, summaries.back().name.size());
  }
  auto list = nlohmann::ordered_json::array();
  for (const auto& run : summaries) {
    fmt::print("{}\n", line_of(run, widest, room_of(stdout)));
    list.push_back(json_of(run));
  }
  for (const auto& run : joined) {
    say("{}", joined_text(run));
    list.push_back(json_of(run));
  }
  if (shown.json) fmt::print("{}\n", list.dump());
}

void show_run(const std::string& name, const Shown& shown) {
  if (shown.watch) return watch([&] { show_run(name, {.json = shown.json}); });
  const auto run = find_run(name).take();
  const auto config = load_config(run / "config.toml");
  const auto summary = summary_of(run);
  say("run: {}\n", run.string());
  say("state: {}\n", summary.state);
  say("corpus: {}\n", one_line(summary.corpus));
  say("model: {}, d = {}, {} blocks in {}\n", config.model.is_subspace() ? "subspace" : "dense", config.model.d,
      config.model.blocks, counted(config.pipeline.stages, "stage"));
  if (const auto origin = read_file(run / "origin.txt"))
    say("origin: {}\n", one_line(origin.value().substr(0, origin.value().find('\n'))));
  std::error_code ignored;
  if (const auto& hash = config.model.table; !hash.empty()) {
    const auto table = table_path(run, hash);
    const auto bytes = std::filesystem::file_size(table, ignored);
    say("token table: {:.12}... ({})\n", hash, ignored ? "missing" : format_size(bytes));
  }
  say("progress: {}, last changed {}\n", progress_text(summary), summary.changed);
  std::set<int64_t> steps;
  for (const auto& id : checkpoints_of(run).take()) steps.insert(id.step);
  say("checkpoints of steps: {}\n", steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", ")));
  if (std::filesystem::exists(run / "model.safetensors", ignored)) {
    say("weights: model.safetensors ({})\n", format_size(std::filesystem::file_size(run / "model.safetensors")));
  }
  say("size: {}\n", format_size(summary.bytes));
  const auto samples = read_samples(run);
  if (!samples.empty()) say("{}\n", sample_text(samples.back()));
  if (!shown.json) return;
  auto object = json_of(summary);
  object["checkpoints"] = steps;
  object["samples"] = nlohmann::ordered_json::array();
  for (const auto& one : samples) object["samples"].push_back({{"step", one.step}, {"text", one.text}});
  fmt::print("{}\n", object.dump());
}

void remove_run(const std::string& name, bool yes) {
  const auto run = find_run(name).take();
  const auto summary = summary_of(run);
  if (summary.state == "running") {
    throw UserError(
        fmt::format("{}: this run is running; stop it first, with ctrl-C where it was started", run.string()));
  }
  const auto what = fmt::format("{} ({}, {})", run.string(), progress_text(summary), format_size(summary.bytes));
  if (!yes) {
    if (::isatty(STDIN_FILENO) == 0) throw UserError(fmt::format("{}: give --yes to remove it for good", what));
    say("remove {} for good? [y/N] ", what);
    std::fflush(stdout);
    std::string answer;
    if (!std::getline(std::cin, answer) || (answer != "y" && answer != "yes")) {
      say("it stays\n");
      return;
    }
  }
  remove_tree(run).take();
  say("removed {}\n", what);
}

namespace {

// Stages in order, each with its machine or with nobody, then the machines that wait for one.
nlohmann::ordered_json print_members(const control::RunStatus& status, int64_t stages) {
  std::vector<control::MemberStatus> members(status.members().begin(), status.members().end());
  const auto place = [&](const control::MemberStatus& one) { return one.has_seat() ? one.seat().stage() : stages; };
  std::stable_sort(members.begin(), members.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  auto json = nlohmann::ordered_json::array();
  int64_t next = 0;
  const auto print_empty = [&](int64_t until) {
    for (; next < until; ++next) say("  {:<10} nobody\n", fmt::format("stage {}", next));
  };
  for (const auto& member : members) {
    print_empty(std::min(place(member), stages));
    if (member.has_seat()) next = std::max(next, std::min(place(member), stages) + 1);
    say("  {:<10} {:<16} {:<22} {}\n",
        member.has_seat() ? fmt::format("stage {}", member.seat().stage()) : std::string("waits"),
        one_line(member.peer()), one_line(member.address()),
        member.connected() ? fmt::format("heard {:.1f} s ago", member.heard_s_ago()) : "away");
    json.push_back({{"peer", member.peer()},
                    {"stage", member.has_seat() ? member.seat().stage() : -1},
                    {"connected", member.connected()}});
  }
  print_empty(stages);
  return json;
}

nlohmann::ordered_json print_links(const control::RunStatus& status) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& link : status.links()) {
    std::string facts;
    if (link.has_facts()) {
      facts = fmt::format("; round trip {:.1f} ms, {} there, {} back", 1e3 * link.facts().round_trip_s(),
                          rate_text(link.facts().up_bits_per_s()), rate_text(link.facts().down_bits_per_s()));
    }
    say("  stages {} and {}: {}{}\n", link.boundary(), link.boundary() + 1, one_line(link.way()), facts);
    json.push_back({{"boundary", link.boundary()},
                    {"way", link.way()},
                    {"round_trip_s", link.facts().round_trip_s()},
                    {"up_bits_per_s", link.facts().up_bits_per_s()},
                    {"down_bits_per_s", link.facts().down_bits_per_s()}});
  }
  return json;
}

}  // namespace

namespace {

// validation_loss, left_s: as the run's files have it, if they are here.
void print_status(const control::RunStatus& status, int64_t stages, const std::optional<double>& validation_loss,
                  const std::optional<double>& left_s, const nlohmann::ordered_json& more, bool json) {
  // A number of the epoch stands in `why` already where that is about it.
  const auto why = one_line(status.why());
  say("{}: step {} of {}{}; {}\n", one_line(status.phase()), status.step(), status.steps(),
      why.starts_with("epoch ") ? "" : fmt::format(", epoch {}", status.epoch()), why);
  if (status.paused() && status.phase() != "paused") say("the run is paused\n");
  if (status.step() > 0)
    say("loss {:.4f}; stages waited {:.0f} % of the step\n", status.loss(), 100 * status.wait_share());
  if (validation_loss) say("validation loss {:.4f}\n", *validation_loss);
  if (left_s) say("time left: about {}\n", left_text(*left_s));
  say("last checkpoint: {}\n", status.manifest_step() < 0 ? "none" : fmt::format("step {}", status.manifest_step()));
  const auto members = print_members(status, stages);
  const auto links = print_links(status);
  constexpr int kShownEvents = 8;
  for (int i = std::max(0, status.events_size() - kShownEvents); i < status.events_size(); ++i) {
    const auto& event = status.events(i);
    say("  {} {}: {}\n", local_time(event.time()), one_line(event.kind()), one_line(event.text()));
  }
  if (!json) return;
  nlohmann::ordered_json object = {{"phase", status.phase()},
                                   {"step", status.step()},
                                   {"steps", status.steps()},
                                   {"epoch", status.epoch()},
                                   {"loss", status.loss()}};
  object.update(more);
  object.update(
      {{"manifest_step", status.manifest_step()}, {"paused", status.paused()}, {"members", members}, {"links", links}});
  fmt::print("{}\n", object.dump());
}

// A run of somebody else: asks its coordinator with this machine's own certificate.
void print_joined_status(const JoinedFolder& run, bool json) {
  say("{}", joined_text(run));
  std::fflush(stdout);
  control::RunStatus status;
  call(coordinator_access(run.joined.addresses, run.folder / "identity"), joined_name(run),
       [&](auto& stub, auto* context) { return stub.GetStatus(context, {}, &status); });
  // Comes from somebody else: more stages than anybody has would fill the screen.
  const auto stages = std::clamp<int64_t>(run.joined.stages, 0, kMostShownStages);
  const auto loss = status.validation_loss() > 0 ? std::optional(status.validation_loss()) : std::nullopt;
  print_status(status, stages, loss, {},
               {{"validation_loss", loss ? nlohmann::ordered_json(*loss) : nullptr}, {"joined", json_of(run)}}, json);
}

}  // namespace

void print_status(const std::string& name, const Shown& shown) {
  if (shown.watch) return watch([&] { print_status(name, {.json = shown.json}); });
  // A run of this machine comes first, also where no name is given.
  const auto own = find_run(name);
  if (!own) {
    if (const auto joined = find_joined_run(name)) return print_joined_status(*joined, shown.json);
  }
  const auto run = find_run(name).take();
  control::RunStatus status;
  call_coordinator(run, [&](auto& stub, auto* context) { return stub.GetStatus(context, {}, &status); });
  const auto summary = summary_of(run);
  say("run: {}\n{}", run.string(), limits_line(run));
  print_status(status, load_config(run / "config.toml").pipeline.stages, summary.validation_loss, summary.left_s,
               {{"validation_loss", json_of(summary)["validation_loss"]},
                {"eta_s", json_of(summary)["eta_s"]},
                {"limits", limits_json(run)}},
               shown.json);
}

void pause_run(const std::string& run) { send_control(run, control::ControlRequest::PAUSE); }
void resume_run(const std::string& run) { send_control(run, control::ControlRequest::RESUME); }
void kick(const std::string& peer, const std::string& run) { send_control(run, control::ControlRequest::KICK, peer); }
void unkick(const std::string& peer, const std::string& run) {
  send_control(run, control::ControlRequest::UNKICK, peer);
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
      const auto whom = arguments.uses == 1 ? "one machine" : fmt::format("{} machines", arguments.uses);
      const auto how = fmt::format(
          "\nThis line lets {} join the run within {}. Send it over a channel that you trust. On the other machine:\n"
          "  thinpipe join LINE\nTo revoke it: thinpipe invite --revoke {}\n",
          whom, arguments.expires, reply.id());
      fmt::print(stderr, "{}", folded(how, room_of(stderr)));
    }
    return;
  }
  if (reply.invites().empty()) say("no invites yet\n");
  for (const auto& line : reply.invites()) {
    say("{}  {} left  until {}  {}{}\n", line.id(), counted(line.uses_left(), "use"), line.expires(), line.state(),
        line.note().empty() ? "" : "  # " + line.note());
  }
}

}  // namespace thinpipe
