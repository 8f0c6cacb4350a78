#include "run/run_files.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/line.h"

namespace thinpipe {
namespace {

template <typename Content>
Result<Content> read_json(const std::filesystem::path& path, Content (*content_of)(const nlohmann::json&)) {
  const auto text = TRY(read_file(path));
  try {
    return content_of(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception&) {  // not JSON, not an object, or a value of another type
    return Error{fmt::format("{} is not what thinpipe writes", path.string())};
  }
}

double loss_of(const nlohmann::json& outcome, const char* key) {
  const auto found = outcome.find(key);
  return found != outcome.end() && found->is_number() ? found->get<double>() : std::nan("");
}

}  // namespace

Result<CoordinatorPlace> read_coordinator_place(const std::filesystem::path& run_folder) {
  return read_json<CoordinatorPlace>(run_folder / "coordinator.json", [](const nlohmann::json& found) {
    return CoordinatorPlace{found.value("address", ""), found.value("pid", int64_t{0}), found.value("run", "")};
  });
}

Result<DashboardPlace> read_dashboard_place(const std::filesystem::path& run_folder) {
  return read_json<DashboardPlace>(run_folder / "dashboard.json", [](const nlohmann::json& found) {
    return DashboardPlace{found.value("address", ""), found.value("port", 0), found.value("pid", int64_t{0})};
  });
}

Status write_dashboard_place(const std::filesystem::path& run_folder, const DashboardPlace& place) {
  const nlohmann::ordered_json json = {{"address", place.address}, {"port", place.port}, {"pid", place.pid}};
  return write_file_atomically(run_folder / "dashboard.json", json.dump() + "\n", FileMode::kPrivate);
}

Result<RunOutcome> read_outcome(const std::filesystem::path& run_folder) {
  return read_json<RunOutcome>(run_folder / "outcome.json", [](const nlohmann::json& found) {
    return RunOutcome{.failed = found.value("failed", true),
                      .complete = found.value("complete", false),
                      .reason = found.value("reason", ""),
                      .step = found.value("step", int64_t{0}),
                      .manifest_step = found.value("manifest_step", int64_t{0}),
                      .loss = loss_of(found, "loss"),
                      .validation_loss = loss_of(found, "validation_loss"),
                      .step_bytes = found.value("step_bytes", uint64_t{0})};
  });
}

std::filesystem::path join_folder(const std::string& run) {
  // The name becomes a path.
  const bool plain = !run.empty() && run.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!plain) throw UserError("this invite names a run in a way that no thinpipe does; ask for another one");
  return data_dir() / "joined" / run;
}

std::string run_name(const std::filesystem::path& run_folder) {
  const auto folder = std::filesystem::absolute(run_folder / "").lexically_normal();  // with a slash at its end
  return one_line(folder.parent_path().filename().string());
}

Result<JoinedRun> read_joined_run(const std::filesystem::path& folder) {
  return read_json<JoinedRun>(folder / "joined.json", [](const nlohmann::json& found) {
    JoinedRun joined{.run = one_line(found.at("run").get<std::string>()),
                     .name = one_line(found.at("name").get<std::string>()),
                     .peer = one_line(found.at("peer").get<std::string>()),
                     .addresses = found.at("addresses").get<std::vector<std::string>>(),
                     .stages = found.at("stages").get<int64_t>(),
                     .stage = found.at("stage").get<int64_t>(),
                     .step = found.at("step").get<int64_t>(),
                     .steps = found.at("steps").get<int64_t>(),
                     .steps_here = found.at("steps_here").get<int64_t>(),
                     .tokens_here = found.at("tokens_here").get<int64_t>(),
                     .seconds_here = found.at("seconds_here").get<int64_t>(),
                     .bytes_sent = found.at("bytes_sent").get<uint64_t>(),
                     .bytes_received = found.at("bytes_received").get<uint64_t>(),
                     .ended = one_line(found.at("ended").get<std::string>()),
                     .model = found.value("model", "")};
    return joined;
  });
}

Status write_joined_run(const std::filesystem::path& folder, const JoinedRun& joined) {
  const nlohmann::ordered_json json = {{"run", joined.run},
                                       {"name", one_line(joined.name)},
                                       {"peer", joined.peer},
                                       {"addresses", joined.addresses},
                                       {"stages", joined.stages},
                                       {"stage", joined.stage},
                                       {"step", joined.step},
                                       {"steps", joined.steps},
                                       {"steps_here", joined.steps_here},
                                       {"tokens_here", joined.tokens_here},
                                       {"seconds_here", joined.seconds_here},
                                       {"bytes_sent", joined.bytes_sent},
                                       {"bytes_received", joined.bytes_received},
                                       {"ended", one_line(joined.ended)},
                                       {"model", joined.model}};
  return write_file_atomically(folder / "joined.json", json.dump() + "\n");
}

bool takes_part(const std::filesystem::path& folder) {
  const auto lock = lock_folder(folder);
  return lock && !lock.value();
}

std::string full_disk_advice(const std::filesystem::path& run_folder) {
  constexpr uint64_t kFullBelow = 1 << 20;
  std::error_code code;
  const auto space = std::filesystem::space(run_folder, code);
  if (code || space.available >= kFullBelow) return "";
  return fmt::format(
      "; the disk of {} is full: free some space and continue the run (`thinpipe train --resume {}`, or `thinpipe "
      "serve "
      "--run {}`); no committed step is lost",
      run_folder.string(), run_folder.string(), run_folder.string());
}

}  // namespace thinpipe
