#include "dashboard/run_view.h"

#include <fmt/format.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/files.h"
#include "base/line.h"
#include "config/config_file.h"
#include "run/event_rows.h"
#include "run/run_files.h"

namespace thinpipe {
namespace {

constexpr int64_t kShownEvents = 200;
constexpr auto kStatusTimeout = std::chrono::seconds(2);
constexpr auto kControlTimeout = std::chrono::seconds(20);

int64_t tokens_in(const TrainConfig& train) { return train.microbatches * train.microbatch * train.seq_len; }

// Bytes per token that a dense model would send over one cut in fp32, both ways.
double fp32_bytes(const ModelConfig& model) { return 8.0 * static_cast<double>(model.d); }

nlohmann::json workers_of(const control::RunStatus& status) {
  auto workers = nlohmann::json::array();
  for (const auto& member : status.members()) {
    workers.push_back({{"peer", member.peer()},
                       {"stage", member.has_seat() ? member.seat().stage() : -1},
                       {"connected", member.connected()},
                       {"address", member.address()},
                       {"heard_s_ago", std::round(member.heard_s_ago() * 10) / 10}});
  }
  return workers;
}

// A link's rates as measured, or as [link] limits them.
struct LinkRates {
  double up = 0, down = 0;  // bits per second; 0: unknown
};
LinkRates rates_of(const control::PathFacts& facts, const CutSettings& limits) {
  const auto least = [](double measured, uint64_t limit) {
    const auto most = static_cast<double>(limit);
    return limit > 0 && (measured <= 0 || most < measured) ? most : measured;
  };
  return {least(facts.up_bits_per_s(), limits.forward.rate_bits_per_s),
          least(facts.down_bits_per_s(), limits.backward.rate_bits_per_s)};
}

// The share of a link's rate that the last step used, in the busier direction.
double use_of(const LinkRates& rates, const nlohmann::json& bytes, double step_s) {
  const auto share = [&](const char* direction, double rate) {
    return rate > 0 ? 8 * bytes.value(direction, 0.0) / step_s / rate : 0.0;
  };
  return std::max(share("forward", rates.up), share("backward", rates.down));
}

// For a label of a Prometheus metric.
std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : one_line(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return "\"" + out + "\"";
}

}  // namespace

RunView::RunView(std::filesystem::path folder)
    : folder_(std::move(folder)),
      config_(load_config(folder_ / "config.toml")),
      history_(folder_, tokens_in(config_.train), config_.pipeline.stages - 1) {}

bool RunView::refresh() {
  ask();
  const std::lock_guard lock(mutex_);
  const bool more = history_.follow();
  return more;
}

// ---- the coordinator ----

void RunView::ask() {
  const std::lock_guard asking(asking_);
  const auto place = read_coordinator_place(folder_);
  auto answer = Answer::kNone;
  control::RunStatus status;
  if (place) {
    answer = Answer::kFailed;
    try {
      if (!line_ || line_address_ != place.value().address) {
        line_ = std::make_unique<CoordinatorLine>(operator_access(folder_, place.value().address));
        line_address_ = place.value().address;
      }
      control::StatusRequest request;
      {
        const std::lock_guard lock(mutex_);
        if (!events_.empty()) request.set_events_after(events_.back()["number"]);
      }
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kStatusTimeout);
      if (line_->stub()->GetStatus(&context, request, &status).ok()) answer = Answer::kGood;
    } catch (const UserError&) {  // its certificate is being written, or gone
    }
  }
  const std::lock_guard lock(mutex_);
  answer_ = answer;
  if (answer == Answer::kGood) {
    add_events(status.events());
    status.clear_events();
    status_ = std::move(status);
  } else if (answer == Answer::kNone) {
    google::protobuf::RepeatedPtrField<control::EventLine> stored;
    const int64_t after = events_.empty() ? 0 : events_.back()["number"].get<int64_t>();
    for (auto& event : stored_events(folder_, after, kShownEvents)) *stored.Add() = std::move(event);
    add_events(stored);
  }
}

void RunView::add_events(const google::protobuf::RepeatedPtrField<control::EventLine>& events) {
  for (const auto& event : events) {
    if (!events_.empty() && event.number() <= events_.back()["number"].get<int64_t>()) continue;
    events_.push_back(
        {{"number", event.number()}, {"time", event.time()}, {"kind", event.kind()}, {"text", event.text()}});
  }
  while (std::ssize(events_) > kShownEvents) events_.erase(events_.begin());
}

Result<std::string> RunView::control(control::ControlRequest::What what) {
  const std::lock_guard asking(asking_);
  const auto place = read_coordinator_place(folder_);
  if (!place) return Error{"this run is not being served"};
  try {
    CoordinatorLine line(operator_access(folder_, place.value().address));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kControlTimeout);
    control::ControlRequest request;
    request.set_what(what);
    control::ControlReply reply;
    const auto status = line.stub()->Control(&context, request, &reply);
    if (!status.ok()) return Error{one_line(status.error_message())};
    return reply.said();
  } catch (const UserError& error) {
    return Error{error.what()};
  }
}

// ---- what is shown ----

std::string RunView::state() const {
  if (answer_ == Answer::kGood) return "running";
  if (answer_ == Answer::kFailed) return "unreachable";
  if (const auto outcome = read_outcome(folder_)) {
    if (outcome.value().failed) return "failed";
    return outcome.value().complete ? "complete" : "interrupted";
  }
  return history_.last_step() > 0 ? "interrupted" : "not started";
}

nlohmann::json RunView::run() const {
  const auto text = read_file(folder_ / "config.toml");
  return {{"name", folder_.filename().string()},
          {"folder", folder_.string()},
          {"model", config_.model.is_subspace() ? "subspace" : "dense"},
          {"d", config_.model.d},
          {"blocks", config_.model.blocks},
          {"stages", config_.pipeline.stages},
          {"rank", config_.model.is_subspace() ? config_.model.subspace.rank : config_.model.d},
          {"pack", to_string(config_.boundary.pack)},
          {"cuts", blocks_per_stage(config_)},
          {"steps", config_.train.steps},
          {"tokens_per_step", tokens_in(config_.train)},
          {"corpus", config_.data.corpus},
          {"fp32_bytes_per_token", fp32_bytes(config_.model)},
          {"config", text ? text.value() : ""}};
}

nlohmann::json RunView::status() const {
  const std::lock_guard lock(mutex_);
  const bool known = answer_ != Answer::kNone;  // a coordinator that does not answer may come back
  const auto outcome = known ? std::optional<RunOutcome>() : [&]() -> std::optional<RunOutcome> {
    const auto read = read_outcome(folder_);
    return read ? std::optional(read.value()) : std::nullopt;
  }();
  const int64_t step = std::max(history_.last_step(), known ? status_.step() : 0);
  const double rate = history_.tokens_per_s();
  const double bytes = history_.bytes_per_token();
  const auto left = static_cast<double>(config_.train.steps - step);
  const double step_s = static_cast<double>(tokens_in(config_.train)) / rate;
  const auto limits = link_settings(config_);
  auto links = nlohmann::json::array();
  for (const auto& link : status_.links()) {
    const auto cut = static_cast<size_t>(link.boundary());
    const auto& all = history_.last_bytes();
    const auto rates = rates_of(link.facts(), cut < limits.size() ? limits[cut] : CutSettings{});
    const bool timed = all.is_array() && cut < all.size() && std::isfinite(step_s);
    links.push_back({{"boundary", link.boundary()},
                     {"way", link.way()},
                     {"round_trip_s", link.facts().round_trip_s()},
                     {"up_bits_per_s", rates.up},
                     {"down_bits_per_s", rates.down},
                     {"use", timed ? use_of(rates, all[cut], step_s) : 0.0}});
  }
  const auto& timing = history_.last_timing();
  const auto& traced = history_.last_traced();
  const auto in_stages = [](const nlohmann::json& line) {
    return line.is_object() && line.contains("stages") ? line["stages"] : nlohmann::json::array();
  };
  return {{"state", state()},
          {"phase", known ? status_.phase() : ""},
          {"why", known     ? status_.why()
                  : outcome ? outcome->reason
                            : ""},
          {"step", step},
          {"steps", config_.train.steps},
          {"epoch", status_.epoch()},
          {"paused", known && status_.paused()},
          {"loss", history_.last_loss()},
          {"validation_loss", history_.validation_loss()},
          {"manifest_step", known     ? status_.manifest_step()
                            : outcome ? outcome->manifest_step
                                      : -1},
          {"tokens_per_s", rate},
          {"eta_s", left * step_s},
          {"bytes_per_token", bytes},
          {"compression", bytes > 0 ? fp32_bytes(config_.model) / bytes : std::numeric_limits<double>::quiet_NaN()},
          {"wait_share", status_.wait_share()},
          {"workers", known ? workers_of(status_) : nlohmann::json::array()},
          {"links", links},
          {"stages", in_stages(timing)},
          {"traced_step", traced.is_object() ? traced.value("step", int64_t{0}) : 0},
          {"traced", in_stages(traced)}};
}

nlohmann::json RunView::steps(int64_t from, int64_t to, int64_t points) const {
  const std::lock_guard lock(mutex_);
  return history_.thinned(from, to, points);
}

nlohmann::json RunView::events(int64_t after) const {
  const std::lock_guard lock(mutex_);
  auto newer = nlohmann::json::array();
  for (const auto& event : events_) {
    if (event["number"].get<int64_t>() > after) newer.push_back(event);
  }
  return newer;
}

std::string RunView::metrics() const {
  const auto now = status();
  std::string text;
  const auto add = [&](const char* name, const char* help, const nlohmann::json& value) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) return;
    text +=
        fmt::format("# HELP thinpipe_{0} {1}\n# TYPE thinpipe_{0} gauge\nthinpipe_{0} {2}\n", name, help, value.dump());
  };
  add("up", "Whether the coordinator answers.", now["state"] == "running" ? 1 : 0);
  add("step", "Committed steps.", now["step"]);
  add("steps", "Steps of the whole run.", now["steps"]);
  add("paused", "Whether the run is paused.", now["paused"].get<bool>() ? 1 : 0);
  add("loss", "Training loss of the last step, nats per token.", now["loss"]);
  add("validation_loss", "Last validation loss, nats per token.", now["validation_loss"]);
  add("tokens_per_second", "Over the last steps.", now["tokens_per_s"]);
  add("bytes_per_token", "Per cut, both directions.", now["bytes_per_token"]);
  add("wait_share", "Share of the last step that stages waited.", now["wait_share"]);
  text +=
      "# HELP thinpipe_worker_connected Whether the coordinator hears the worker.\n# TYPE thinpipe_worker_connected "
      "gauge\n";
  for (const auto& worker : now["workers"]) {
    text += fmt::format("thinpipe_worker_connected{{peer={},stage=\"{}\"}} {}\n", quoted(worker["peer"]),
                        worker["stage"].get<int64_t>(), worker["connected"].get<bool>() ? 1 : 0);
  }
  text +=
      "# HELP thinpipe_link_round_trip_seconds Of the link after a stage.\n# TYPE thinpipe_link_round_trip_seconds "
      "gauge\n";
  for (const auto& link : now["links"]) {
    text += fmt::format("thinpipe_link_round_trip_seconds{{boundary=\"{}\"}} {}\n", link["boundary"].get<int64_t>(),
                        link["round_trip_s"].dump());
  }
  return text;
}

}  // namespace thinpipe
