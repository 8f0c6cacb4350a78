#include "run/kept_model.h"

#include <fmt/format.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/units.h"
#include "config/config_file.h"
#include "config/model_spec.h"
#include "pipeline/unit_file.h"
#include "plan/machine.h"
#include "run/run_changes.h"
#include "run/worker/state_files.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfigName = "config.toml";
constexpr const char* kTokenizerName = "tokenizer.model";
constexpr const char* kWeightsName = "model.safetensors";
constexpr uint64_t kMostConfigBytes = 1 << 20, kMostTokenizerBytes = 64 << 20, kMostTableHeaderBytes = 1 << 20;
constexpr auto kModelCallPatience = std::chrono::seconds(10);  // for one call
constexpr Duration kModelPatience = std::chrono::minutes(1);   // without an answer or a piece
constexpr Duration kMostWriting = std::chrono::hours(1);  // until the organiser's machine has written it
constexpr Duration kAskEvery = std::chrono::milliseconds(500);
constexpr size_t kMostNameLetters = 60;

uint64_t most_bytes(const std::string& name, const control::RunDescription& run, const RunConfig& config) {
  if (name == kConfigName) return kMostConfigBytes;
  if (name == kTokenizerName) return kMostTokenizerBytes;
  if (name != kWeightsName) {
    return kMostTableHeaderBytes +
           static_cast<uint64_t>(run.vocab()) * static_cast<uint64_t>(config.model.d) * sizeof(float);
  }
  uint64_t most = 0;
  for (const auto& unit : model_units(config.model, whole_model(config.model))) {
    most += most_unit_bytes(config, run.vocab(), unit);
  }
  return most;
}

fs::path fetched_folder(const ModelFetch& fetch) { return fetch.folder / "model"; }

// False: the person no longer wants it.
bool wait_a_moment(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  changed.wait_for(lock, stop, kAskEvery, [] { return false; });
  return !stop.stop_requested();
}

Error stopped() { return Error{"the model was not fetched: stopped by ctrl-C"}; }

grpc::Status ask_once(CoordinatorLine& line, const ModelFetch& fetch, bool have_it, control::ModelFiles& files) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kModelCallPatience);
  const std::stop_callback stopping(fetch.stop, [&context] { context.TryCancel(); });
  control::ModelRequest request;
  request.set_run(fetch.run.run());
  request.set_have_it(have_it);
  return line.stub()->GetModel(&context, request, &files);
}

// Asks until the model is written.
Result<control::ModelFiles> ask_for_files(CoordinatorLine& line, const ModelFetch& fetch) {
  const SystemClock clock;
  const auto begin = clock.now();
  for (auto heard = begin; clock.now() - begin < kMostWriting;) {
    control::ModelFiles files;
    const auto status = ask_once(line, fetch, false, files);
    if (fetch.stop.stop_requested()) return stopped();
    if (status.ok() && files.ready()) return files;
    if (status.ok()) {
      heard = clock.now();
    } else if (status.error_code() != grpc::StatusCode::UNAVAILABLE &&
               status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
      return Error{fmt::format("the model cannot be fetched: {}", one_line(status.error_message()))};
    } else if (clock.now() - heard > kModelPatience) {
      break;
    } else {
      line.hang_up();  // another of its addresses may answer
    }
    if (!wait_a_moment(fetch.stop)) return stopped();
  }
  return Error{fmt::format("the model cannot be fetched: the organiser's machine at {} does not answer", line.where())};
}

uint64_t bytes_at(const fs::path& path) {
  std::error_code code;
  const auto bytes = fs::file_size(path, code);
  return code ? 0 : bytes;
}

Status check_room(const control::ModelFiles& files, const fs::path& place) {
  uint64_t bytes = 0;
  for (const auto& file : files.files()) bytes += file.bytes();
  const auto free = free_disk_bytes(place);
  if (free == 0 || free >= bytes) return {};
  return Error{fmt::format("the model has {} and the disk of {} only {} free; free some space and join again soon",
                           format_size(bytes), place.string(), format_size(free))};
}

Status fetch_files(CoordinatorLine& line, const ModelFetch& fetch, const control::ModelFiles& files) {
  const SystemClock clock;
  uint64_t all = 0, done = 0;
  for (const auto& file : files.files()) all += file.bytes();
  auto moved = clock.now();
  StateSource source;
  source.coordinator = fetch.coordinator;
  source.run = fetch.run.run();
  source.folder = fetched_folder(fetch);
  source.stop = fetch.stop;
  source.on_download = [&](uint64_t bytes, uint64_t) {
    moved = clock.now();
    if (fetch.on_download) fetch.on_download(std::min(all, done + bytes), all);
  };
  StateFiles downloads(source);
  for (const auto& file : files.files()) {
    const auto path = fetched_folder(fetch) / file.unit();
    for (auto status = downloads.fetch_to(file, path); !status; status = downloads.fetch_to(file, path)) {
      if (fetch.stop.stop_requested()) return stopped();
      const auto left = file.bytes() - std::min(file.bytes(), bytes_at(path.parent_path() / (file.sha256() + ".part")));
      if (const auto free = free_disk_bytes(path); free > 0 && free < left) return status;
      if (clock.now() - moved > kModelPatience) return status;
      log_warn("{}; trying again", status.error().message);
      if (!wait_a_moment(fetch.stop)) return stopped();
      TRY(ask_for_files(line, fetch));  // it may no longer give anything to this machine
    }
    done += file.bytes();
    if (fetch.on_download) fetch.on_download(done, all);
  }
  return {};
}

}  // namespace

std::vector<std::string> kept_files(const RunConfig& config) {
  std::vector<std::string> names{kConfigName, kTokenizerName, kWeightsName};
  if (!config.model.table.empty()) names.push_back(table_path("", config.model.table).string());
  return names;
}

std::string why_not_kept(const control::RunDescription& run) {
  if (run.shares_model()) return "";
  return "--keep-model: the organiser does not give this run's model to its members (cluster.share_model); ask for it, "
         "or join without --keep-model";
}

Status check_model_files(const control::ModelFiles& files, const control::RunDescription& run,
                         const RunConfig& config) {
  const auto names = kept_files(config);
  std::set<std::string> seen;
  for (const auto& file : files.files()) {
    const auto shown = in_quotes(file.unit(), 60);
    if (std::find(names.begin(), names.end(), file.unit()) == names.end() || !seen.insert(file.unit()).second) {
      return Error{fmt::format("the model was announced with a file {} that it does not need", shown)};
    }
    if (!is_sha256_hex(file.sha256())) return Error{fmt::format("{} was announced without its hash", shown)};
    if (const auto most = most_bytes(file.unit(), run, config); file.bytes() > most) {
      return Error{fmt::format("{} was announced with {} bytes, and it has at most {}", shown, file.bytes(), most)};
    }
  }
  if (seen.size() == names.size()) return {};
  return Error{fmt::format("the model was announced with {} of its {} files", seen.size(), names.size())};
}

Status fetch_model(const ModelFetch& fetch) {
  CoordinatorLine line(fetch.coordinator);
  const auto files = TRY(ask_for_files(line, fetch));
  TRY(check_model_files(files, fetch.run, fetch.config));
  const auto place = fetched_folder(fetch);
  TRY(check_room(files, place));
  if (const auto status = fetch_files(line, fetch, files); !status) {
    // An interrupted download can go on later; one for which there is no room cannot.
    if (const auto free = free_disk_bytes(place); free > 0 && !check_room(files, place)) (void)remove_tree(place);
    return Error{fmt::format("the model was not fetched: {}", status.error().message)};
  }
  control::ModelFiles ignored;
  (void)ask_once(line, fetch, true, ignored);  // else the organiser's machine waits a little longer
  return {};
}

Result<fs::path> keep_fetched(const ModelFetch& fetch, const fs::path& runs, const fs::path& before,
                              const std::function<Status(const fs::path&)>& check) {
  const auto place = fetched_folder(fetch);
  const auto config = TRY(read_file(place / kConfigName));
  const auto hash = [&] {
    try {
      return config_identity(parse_config(config, "the config of the model"));
    } catch (const UserError& error) {
      return std::string(error.what());
    }
  }();
  if (hash != fetch.run.config_sha256()) {
    (void)remove_tree(place);
    return Error{"the model came with another config than the run's; it is not kept"};
  }
  const auto same = [&](const fs::path& other) {
    const auto a = sha256_of_file(place / kWeightsName), b = sha256_of_file(other / kWeightsName);
    return a && b && a.value() == b.value();
  };
  if (!before.empty() && same(before)) {
    TRY(remove_tree(place));
    return before;
  }
  TRY(make_directories(runs));
  auto folder = TRY(AtomicFolder::create_new(runs, plain_run_name(fetch.run.name(), fetch.run.run())));
  for (const auto& name : kept_files(fetch.config)) {
    TRY(make_directories((folder.path() / name).parent_path()));
    TRY(rename_path(place / name, folder.path() / name));
  }
  (void)remove_tree(place);
  TRY(check(folder.path()));
  TRY(folder.commit());
  return folder.target();
}

std::string plain_run_name(const std::string& name, const std::string& run) {
  std::string plain;
  for (const char c : name.substr(0, kMostNameLetters)) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    plain += letter || c == '-' || c == '_' || c == '.' ? c : '-';
  }
  const auto begin = plain.find_first_not_of(".-");
  return begin == std::string::npos ? "run-" + run.substr(0, 8) : plain.substr(begin);
}

}  // namespace thinpipe
