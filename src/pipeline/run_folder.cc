#include "pipeline/run_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "config/config_file.h"

namespace thinpipe {
namespace {

const std::set<std::string> kRunFiles{"config.toml", "metrics.jsonl", "model.safetensors", "run.sqlite"};
// What a run may begin with: require_table() finds a token table here, keep_corpus() leaves the others as they are.
const std::set<std::string> kFirstFiles{"tables", "tokenizer.model", "corpus_id"};

// runs/2026-01-31-17-05-09, with -2, -3... if several start in the same second. Creating the folder claims the name.
Result<std::filesystem::path> claim_new_folder() {
  const auto runs = data_dir() / "runs";
  TRY(make_directories(runs));
  const auto stamp = new_run_name();
  for (int attempt = 1; attempt < 1000; ++attempt) {
    const auto path = runs / (attempt == 1 ? stamp : fmt::format("{}-{}", stamp, attempt));
    std::error_code code;
    if (std::filesystem::create_directory(path, code)) return path;
    if (code) return Error{fmt::format("cannot create folder {}: {}", path.string(), code.message())};
  }
  return Error{fmt::format("cannot find a new name for a run in {}", runs.string())};
}

}  // namespace

Result<LineLog> LineLog::create(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) return Error{fmt::format("cannot write {}: {}", path.string(), std::strerror(errno))};
  return LineLog(path, descriptor);
}

LineLog::~LineLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

LineLog::LineLog(LineLog&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

Result<LineLog> LineLog::rewrite(const std::filesystem::path& path, const std::string& lines) {
  TRY(write_file_atomically(path, lines));
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor < 0) return Error{fmt::format("cannot write {}: {}", path.string(), std::strerror(errno))};
  LineLog log(path, descriptor);
  log.size_ = static_cast<int64_t>(lines.size());
  return log;
}

Status LineLog::append(const nlohmann::ordered_json& line) { return append_text(line.dump()); }

Status LineLog::append_text(const std::string& line) {
  const std::string text = line + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(descriptor_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const std::string reason = std::strerror(errno);
      if (::ftruncate(descriptor_, size_) == 0) ::lseek(descriptor_, size_, SEEK_SET);
      return Error{fmt::format("cannot write {}: {}", path_.string(), reason)};
    }
    done += static_cast<size_t>(written);
  }
  size_ += static_cast<int64_t>(text.size());
  return {};
}

std::string new_run_name() { return fmt::format("{:%Y-%m-%d-%H-%M-%S}", fmt::gmtime(std::time(nullptr))); }

Result<NewRunFolder> NewRunFolder::create(const std::filesystem::path& path, const RunConfig& config) {
  std::error_code ignored;
  const bool was_there = !path.empty() && std::filesystem::exists(path, ignored);
  if (!path.empty()) TRY(make_directories(path));
  auto folder = TRY(path.empty() ? claim_new_folder() : Result(path));
  std::set<std::filesystem::path> before;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const auto name = entry.path().filename();
    if (kRunFiles.contains(name.string())) {
      return Error{fmt::format("{} already holds a run ({}); give another folder", folder.string(), name.string())};
    }
    if (!kFirstFiles.contains(name.string())) {
      return Error{fmt::format("{} is not empty: it holds {}; give a new folder, or an empty one", folder.string(),
                               in_quotes(name.string(), 60))};
    }
    before.insert(entry.path());
  }
  NewRunFolder made(std::move(folder), std::move(before), was_there);
  TRY(write_file_atomically(made.path() / "config.toml", to_toml(config)));
  return made;
}

NewRunFolder::NewRunFolder(NewRunFolder&& other) noexcept
    : path_(std::move(other.path_)),
      before_(std::move(other.before_)),
      was_there_(other.was_there_),
      kept_(std::exchange(other.kept_, true)) {}

NewRunFolder::~NewRunFolder() {
  if (kept_) return;
  std::error_code ignored;
  if (!was_there_) {
    std::filesystem::remove_all(path_, ignored);
    return;
  }
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    if (!before_.contains(entry.path())) std::filesystem::remove_all(entry.path(), ignored);
  }
}

RunFolder::~RunFolder() {
  if (metrics_ && !metrics_->empty()) folder_.keep();
}

Result<RunFolder> RunFolder::create(const std::filesystem::path& path, const RunConfig& config) {
  RunFolder run(TRY(NewRunFolder::create(path, config)));
  for (auto* log : {&run.metrics_, &run.timing_}) {
    auto created = TRY(LineLog::create(run.path() / (log == &run.metrics_ ? "metrics.jsonl" : "timing.jsonl")));
    log->emplace(std::move(created));
  }
  return run;
}

// Every start of the run counts its seconds from 0.
Duration trained_time(const std::filesystem::path& timing_file) {
  const auto text = read_file(timing_file);
  double total_s = 0, last_s = 0;
  std::istringstream lines(text ? text.value() : "");
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("seconds") || !json["seconds"].is_number()) continue;
    const auto here_s = json["seconds"].get<double>();
    if (here_s < last_s) total_s += last_s;
    last_s = here_s;
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(total_s + last_s));
}

}  // namespace thinpipe
