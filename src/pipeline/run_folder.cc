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

// runs/2026-01-31-17-05-09, with -2, -3... when several start within a second. Creating it claims it.
Result<std::filesystem::path> claim_new_folder() {
  const auto runs = data_dir() / "runs";
  if (auto status = make_directories(runs); !status) return status.error();
  const auto stamp = new_run_name();
  for (int attempt = 1; attempt < 1000; ++attempt) {
    const auto path = runs / (attempt == 1 ? stamp : fmt::format("{}-{}", stamp, attempt));
    std::error_code code;
    if (std::filesystem::create_directory(path, code)) return path;
    if (code) return Error{fmt::format("cannot create folder {}: {}", path.string(), code.message())};
  }
  return Error{fmt::format("cannot name a new run in {}", runs.string())};
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
  if (auto status = write_file_atomically(path, lines); !status) return status.error();
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
  auto folder = path;
  std::error_code ignored;
  const bool was_there = !path.empty() && std::filesystem::exists(path, ignored);
  if (folder.empty()) {
    auto claimed = claim_new_folder();
    if (!claimed) return claimed.error();
    folder = claimed.value();
  } else if (auto status = make_directories(folder); !status) {
    return status.error();
  }
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

RunFolder::Traces::~Traces() {
  std::error_code ignored;
  for (const auto& path : paths) std::filesystem::remove(path, ignored);
}

RunFolder::~RunFolder() {
  if (!metrics_.empty()) traces_.paths.clear();
}

Result<RunFolder> RunFolder::create(const std::filesystem::path& path, const RunConfig& config) {
  std::error_code ignored;
  const bool was_there = !path.empty() && std::filesystem::exists(path, ignored);
  std::vector<const char*> kept;  // by keep_corpus, later
  for (const char* name : {"tokenizer.model", "corpus_id"}) {
    if (!was_there || !std::filesystem::exists(path / name, ignored)) kept.push_back(name);
  }
  const auto folder = create_run_folder(path, config);
  if (!folder) return folder.error();
  Traces traces;
  if (!was_there) traces.paths.push_back(folder.value());
  const auto made = [&](const char* name) { traces.paths.insert(traces.paths.begin(), folder.value() / name); };
  made("config.toml");
  for (const char* name : kept) made(name);
  auto metrics = LineLog::create(folder.value() / "metrics.jsonl");
  if (!metrics) return metrics.error();
  made("metrics.jsonl");
  auto timing = LineLog::create(folder.value() / "timing.jsonl");
  if (!timing) return timing.error();
  made("timing.jsonl");
  return RunFolder(folder.value(), std::move(metrics.value()), std::move(timing.value()), std::move(traces));
}

}  // namespace thinpipe
