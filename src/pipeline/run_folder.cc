#include "pipeline/run_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.h"
#include "config/config_file.h"

namespace thinpipe {
namespace {

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

Result<std::filesystem::path> create_run_folder(const std::filesystem::path& path, const RunConfig& config) {
  std::error_code ignored;
  const bool was_there = !path.empty() && std::filesystem::exists(path, ignored);
  if (!path.empty()) TRY(make_directories(path));
  const auto folder = TRY(path.empty() ? claim_new_folder() : Result(path));
  for (const char* name : {"config.toml", "metrics.jsonl", "model.safetensors", "run.sqlite"}) {
    if (std::filesystem::exists(folder / name, ignored)) {
      return Error{fmt::format("{} already holds a run ({}); give another folder", folder.string(), name)};
    }
  }
  if (auto written = write_file_atomically(folder / "config.toml", to_toml(config)); !written) {
    if (!was_there) std::filesystem::remove(folder, ignored);
    return written.error();
  }
  return folder;
}

RunFolder::~RunFolder() {
  if (metrics_ && !metrics_->empty()) return;
  std::error_code ignored;
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) std::filesystem::remove_all(*path, ignored);
}

Result<RunFolder> RunFolder::create(const std::filesystem::path& path, const RunConfig& config) {
  std::error_code ignored;
  const auto there = [&](const char* name) { return !path.empty() && std::filesystem::exists(path / name, ignored); };
  const bool new_folder = !there(""), new_tokenizer = !there("tokenizer.model"), new_id = !there("corpus_id"),
             new_tables = !there("tables");
  RunFolder run;
  run.path_ = TRY(create_run_folder(path, config));
  if (new_folder) run.made_.push_back(run.path_);
  run.made_.push_back(run.path_ / "config.toml");
  if (new_tokenizer) run.made_.push_back(run.path_ / "tokenizer.model");  // made later by keep_corpus
  if (new_id) run.made_.push_back(run.path_ / "corpus_id");
  if (new_tables) run.made_.push_back(run.path_ / "tables");  // made later by settle_table
  for (auto* log : {&run.metrics_, &run.timing_}) {
    const auto file = run.path_ / (log == &run.metrics_ ? "metrics.jsonl" : "timing.jsonl");
    auto created = TRY(LineLog::create(file));
    log->emplace(std::move(created));
    run.made_.push_back(file);
  }
  return run;
}

}  // namespace thinpipe
