// Finding checkpoints and checking what they hold: each refusal names the file and what is wrong with it.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_store.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kManifestName = "manifest.json";
constexpr size_t kChunkBytes = 1 << 20;

// Only regular files have one; opening anything else might wait forever.
Result<uint64_t> size_of(const fs::path& path) {
  std::error_code code;
  const auto status = fs::status(path, code);
  if (status.type() == fs::file_type::not_found) return Error{fmt::format("{}: is missing", path.string())};
  if (!fs::is_regular_file(status)) return Error{fmt::format("{}: is not a regular file", path.string())};
  const uint64_t bytes = fs::file_size(path, code);
  if (code) return Error{fmt::format("cannot read {}: {}", path.string(), code.message())};
  return bytes;
}

Status check_size(const fs::path& path, uint64_t needed) {
  const auto bytes = size_of(path);
  if (!bytes) return bytes.error();
  if (bytes.value() == needed) return {};
  return Error{fmt::format("{}: {}: has {} bytes, needs {}", path.string(),
                           bytes.value() < needed ? "truncated" : "too long", bytes.value(), needed)};
}

// Read, not mapped: a disk that fails must give an error, not a signal.
Result<std::string> sha256_of(const fs::path& path) {
  const auto failed = [&path] { return Error{fmt::format("cannot read {}: {}", path.string(), std::strerror(errno))}; };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return failed();
  Sha256 hash;
  std::string chunk(kChunkBytes, '\0');
  ssize_t count = 0;
  do {
    count = ::read(descriptor, chunk.data(), chunk.size());
    if (count > 0) hash.update(std::string_view(chunk).substr(0, static_cast<size_t>(count)));
  } while (count > 0 || (count < 0 && errno == EINTR));
  Result<std::string> result = count < 0 ? Result<std::string>(failed()) : hash.hex();
  ::close(descriptor);
  return result;
}

// Why a file is not the one in the manifest, as far as it tells: `fault` is what is known already.
Error explain(const fs::path& path, const Error& fault, const std::string& hash, const CheckpointManifest& manifest) {
  if (const auto file = SafetensorsFile::open(path); file) {
    const auto run = file.value().metadata().find("run");
    if (run != file.value().metadata().end() && run->second != manifest.run) {
      return Error{fmt::format("{}: is of another run: {}, not {}", path.string(), quoted_for_error(run->second),
                               quoted_for_error(manifest.run))};
    }
  }
  for (const auto& other : manifest.files) {
    if (other.sha256 == hash && other.name != path.filename()) {
      return Error{fmt::format("{}: holds what belongs in {}", path.string(), other.name)};
    }
  }
  return fault;
}

Status verify_file(const fs::path& path, const CheckpointFile& expected, const CheckpointManifest& manifest) {
  if (const auto bytes = size_of(path); !bytes) return bytes.error();
  const auto hash = sha256_of(path);
  if (!hash) return hash.error();
  if (const auto status = check_size(path, expected.bytes); !status) {
    return explain(path, status.error(), hash.value(), manifest);
  }
  if (hash.value() == expected.sha256) return {};
  const Error damaged{
      fmt::format("{}: damaged: its sha256 is {}, needs {}", path.string(), hash.value(), expected.sha256)};
  return explain(path, damaged, hash.value(), manifest);
}

// "step-00000020" and nothing else.
std::optional<int64_t> step_of(std::string_view folder_name) {
  constexpr std::string_view kPrefix = "step-";
  constexpr size_t kDigits = 8;
  if (!folder_name.starts_with(kPrefix) || folder_name.size() != kPrefix.size() + kDigits) return std::nullopt;
  const auto digits = folder_name.substr(kPrefix.size());
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  int64_t step = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return step;
}

}  // namespace

Result<CheckpointManifest> read_manifest(const fs::path& path) {
  const auto bytes = size_of(path);
  if (!bytes) return bytes.error();
  if (bytes.value() > kMaxCheckpointManifestBytes) {
    return Error{fmt::format("{}: not a checkpoint manifest: has {} bytes, at most {} are read", path.string(),
                             bytes.value(), kMaxCheckpointManifestBytes)};
  }
  const auto text = read_file(path);
  if (!text) return text.error();
  return parse_checkpoint_manifest(text.value(), path.string());
}

Status check_sizes(const fs::path& step_folder, const CheckpointManifest& manifest) {
  for (const auto& file : manifest.files) {
    if (auto status = check_size(step_folder / file.name, file.bytes); !status) return status;
  }
  return {};
}

Status check_hashes(const fs::path& step_folder, const CheckpointManifest& manifest) {
  for (const auto& file : manifest.files) {
    if (auto status = verify_file(step_folder / file.name, file, manifest); !status) return status;
  }
  return {};
}

Result<std::vector<int64_t>> checkpoint_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::error_code code;
  fs::directory_iterator entry(folder, code);
  if (code == std::errc::no_such_file_or_directory) return steps;
  for (const fs::directory_iterator end; !code && entry != end; entry.increment(code)) {
    if (const auto step = step_of(entry->path().filename().string())) steps.push_back(*step);
  }
  if (code) return Error{fmt::format("cannot read {}: {}", folder.string(), code.message())};
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

fs::path checkpoint_step_folder(const fs::path& folder, int64_t step) {
  return folder / fmt::format("step-{:08}", step);
}

CheckpointStore::Found CheckpointStore::look_at(int64_t step) const {
  using State = Found::State;
  const auto path = path_of(step, kManifestName);
  auto manifest = read_manifest(path);
  if (!manifest) return {State::kDamaged, {}, manifest.error().message};
  if (manifest.value().run != run_) {
    return {State::kOfAnotherRun,
            {},
            fmt::format("{}: is of another run: {}, not {}", path.string(), quoted_for_error(manifest.value().run),
                        quoted_for_error(run_))};
  }
  if (manifest.value().step != step) {
    return {State::kDamaged, {}, fmt::format("{}: is of step {}, not {}", path.string(), manifest.value().step, step)};
  }
  if (auto status = check_sizes(folder_of(step), manifest.value()); !status) {
    return {State::kDamaged, {}, status.error().message};
  }
  return {State::kWhole, std::move(manifest).take(), {}};
}

Result<std::vector<int64_t>> CheckpointStore::steps() const { return checkpoint_steps(folder_); }

Result<std::optional<CheckpointManifest>> CheckpointStore::latest(int64_t not_after) {
  refusals_.clear();
  const auto all = steps();
  if (!all) return all.error();
  for (const int64_t step : all.value()) {
    if (step > not_after) continue;
    Found found = look_at(step);
    if (found.state == Found::State::kWhole) return std::optional(std::move(found.manifest));
    refusals_.push_back(std::move(found.reason));
  }
  return std::optional<CheckpointManifest>();
}

Status CheckpointStore::verify(const CheckpointManifest& manifest) const {
  const auto path = path_of(manifest.step, kManifestName);
  const auto on_disk = read_manifest(path);
  if (!on_disk) return on_disk.error();
  for (const auto& run : {on_disk.value().run, manifest.run}) {
    if (run != run_) {
      return Error{fmt::format("{}: is of another run: {}, not {}", path.string(), quoted_for_error(run),
                               quoted_for_error(run_))};
    }
  }
  if (on_disk.value() != manifest) {
    return Error{fmt::format(
        "{}: is another manifest (step {}, generation {}) than the one to verify (step {}, "
        "generation {})",
        path.string(), on_disk.value().step, on_disk.value().generation, manifest.step, manifest.generation)};
  }
  return check_hashes(folder_of(manifest.step), manifest);
}

}  // namespace thinpipe
