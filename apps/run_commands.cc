// Looking at runs and steering them: runs, show, status, pause, resume.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/units.h"
#include "call_coordinator.h"
#include "commands.h"
#include "config/config_file.h"
#include "pipeline/table_file.h"
#include "run_folders.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace {

// The last whole line of metrics.jsonl that has a loss; an empty object if there is none.
nlohmann::json last_metrics(const std::filesystem::path& run) {
  nlohmann::json last = nlohmann::json::object();
  const auto text = read_file(run / "metrics.jsonl");
  if (!text) return last;
  std::istringstream lines(text.value());
  std::string line;
  while (std::getline(lines, line)) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("loss")) last = std::move(json);
  }
  return last;
}

std::string progress_of(const std::filesystem::path& run) {
  const auto last = last_metrics(run);
  const auto steps = load_config(run / "config.toml").train.steps;
  if (last.empty()) return fmt::format("step 0/{}", steps);
  const auto loss = last["loss"].is_number() ? fmt::format("{:.4f}", last["loss"].get<double>()) : "not finite";
  return fmt::format("step {}/{}  loss {}", last.value("step", int64_t{0}), steps, loss);
}

void list_runs() {
  const auto runs = known_runs();
  if (runs.empty()) fmt::print("no runs yet; `thinpipe train` makes one\n");
  for (const auto& run : runs) {
    std::string progress;
    try {
      progress = progress_of(run);
    } catch (const UserError& error) {
      progress = error.what();
    }
    fmt::print("{}  {}  {}\n", run.filename().string(), progress, state_of(run));
  }
}

void show_run(const std::string& name) {
  const auto run = find_run(name).take();
  const auto config = load_config(run / "config.toml");
  fmt::print("run: {}\n", run.string());
  fmt::print("state: {}\n", state_of(run));
  fmt::print("model: {}, d = {}, {} blocks in {} stage(s)\n", config.model.is_subspace() ? "subspace" : "dense",
             config.model.d, config.model.blocks, config.pipeline.stages);
  if (const auto origin = read_file(run / "origin.txt"))
    fmt::print("origin: {}\n", one_line(origin.value().substr(0, origin.value().find('\n'))));
  std::error_code ignored;
  if (const auto& hash = config.model.subspace.table; !hash.empty()) {
    const auto table = table_path(run, hash);
    const auto bytes = std::filesystem::file_size(table, ignored);
    fmt::print("token table: {} ({})\n", table.string(), ignored ? "is missing" : format_size(bytes));
  }
  fmt::print("progress: {}\n", progress_of(run));
  std::set<int64_t> steps;
  for (const auto& id : checkpoints_of(run).take()) steps.insert(id.step);
  fmt::print("checkpoints of steps: {}\n", steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", ")));
  if (std::filesystem::exists(run / "model.safetensors", ignored)) {
    fmt::print("weights: {} ({})\n", (run / "model.safetensors").string(),
               format_size(std::filesystem::file_size(run / "model.safetensors")));
  }
}

std::string rate_text(double bits_per_s) {
  return bits_per_s >= 1 && bits_per_s < 1e15 ? format_rate(static_cast<uint64_t>(bits_per_s)) : "an unknown rate";
}

void print_status(const std::string& name, bool json) {
  const auto run = find_run(name).take();
  control::RunStatus status;
  call_coordinator(run, [&](auto& stub, auto* context) { return stub.GetStatus(context, {}, &status); });
  fmt::print("run: {}\n", run.string());
  fmt::print("{}: step {}/{}, epoch {}; {}\n", status.phase(), status.step(), status.steps(), status.epoch(),
             status.why());
  if (status.step() > 0)
    fmt::print("loss {:.4f}; stages waited {:.0f} % of the step\n", status.loss(), 100 * status.wait_share());
  fmt::print("last checkpoint: {}\n",
             status.manifest_step() < 0 ? "none" : fmt::format("step {}", status.manifest_step()));
  auto members = nlohmann::ordered_json::array();
  for (const auto& member : status.members()) {
    const auto stage = member.has_seat() ? fmt::format("stage {}", member.seat().stage()) : std::string("waits");
    fmt::print("  {:<10} {:<16} {:<22} {}\n", stage, member.peer(), member.address(),
               member.connected() ? fmt::format("heard {:.1f} s ago", member.heard_s_ago()) : "away");
    members.push_back({{"peer", member.peer()},
                       {"stage", member.has_seat() ? member.seat().stage() : -1},
                       {"connected", member.connected()}});
  }
  auto links = nlohmann::ordered_json::array();
  for (const auto& link : status.links()) {
    std::string facts;
    if (link.has_facts()) {
      facts = fmt::format("; round trip {:.1f} ms, {} there, {} back", 1e3 * link.facts().round_trip_s(),
                          rate_text(link.facts().up_bits_per_s()), rate_text(link.facts().down_bits_per_s()));
    }
    fmt::print("  stages {} and {}: {}{}\n", link.boundary(), link.boundary() + 1, link.way(), facts);
    links.push_back({{"boundary", link.boundary()},
                     {"way", link.way()},
                     {"round_trip_s", link.facts().round_trip_s()},
                     {"up_bits_per_s", link.facts().up_bits_per_s()},
                     {"down_bits_per_s", link.facts().down_bits_per_s()}});
  }
  constexpr int kShownEvents = 8;
  for (int i = std::max(0, status.events_size() - kShownEvents); i < status.events_size(); ++i) {
    const auto& event = status.events(i);
    fmt::print("  {} {}: {}\n", event.time(), event.kind(), event.text());
  }
  if (!json) return;
  const nlohmann::ordered_json object = {
      {"phase", status.phase()},   {"step", status.step()}, {"steps", status.steps()},
      {"epoch", status.epoch()},   {"loss", status.loss()}, {"manifest_step", status.manifest_step()},
      {"paused", status.paused()}, {"members", members},    {"links", links}};
  fmt::print("{}\n", object.dump());
}

void steer(const std::string& name, control::ControlRequest::What what) {
  const auto run = find_run(name).take();
  control::ControlRequest request;
  request.set_what(what);
  control::ControlReply reply;
  call_coordinator(run, [&](auto& stub, auto* context) { return stub.Control(context, request, &reply); });
  fmt::print("{}\n", reply.said());
}

}  // namespace

void add_run_commands(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  // Examples for the newest run and for a named one, then what happens.
  const auto add = [&](const std::string& command_name, const char* help, const char* happens, auto action) {
    auto* command = app.add_subcommand(command_name, help);
    command->add_option("run", *name, "a run's folder or name; default: the newest run");
    command->footer(fmt::format("Examples:\n  thinpipe {0:<46}the newest run\n  thinpipe {0} 2026-01-31-17-05-09\n{1}",
                                command_name, happens));
    command->callback(action);
    return command;
  };
  auto* runs = app.add_subcommand("runs", "list the runs of this machine");
  runs->footer(
      "Examples:\n  thinpipe runs\n  THINPIPE_DATA_DIR=/big/disk thinpipe runs               those of another data "
      "folder\n"
      "A line for each, newest last: its name, step and loss, and how it stands.");
  runs->callback([] { list_runs(); });
  add("show", "what a run is and how far it came",
      "It prints the run's folder, model, progress, checkpoints and weights; the run need not be going on.",
      [name] { show_run(*name); });
  auto* status = add("status", "how a run that is going on stands",
                     "It asks the run's coordinator: the step, who holds which stage, the links, what happened last.",
                     [name, json] { print_status(*name, *json); });
  status->add_flag("--json", *json, "one JSON object on the last line");
  add("pause", "hold a run after its current step",
      "Its machines stay in the run and wait; thinpipe resume lets them go on.",
      [name] { steer(*name, control::ControlRequest::PAUSE); });
  add("resume", "let a paused run go on",
      "The next step begins at once. A run that was stopped is taken up with thinpipe train --resume.",
      [name] { steer(*name, control::ControlRequest::RESUME); });
}

}  // namespace thinpipe
