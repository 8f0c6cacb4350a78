// Reading a safetensors file: nothing in it is believed before it is checked.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"

namespace thinpipe {
namespace {

constexpr size_t kLengthBytes = 8;

uint64_t little_endian_64(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

// The header's JSON; what follows it in the file is the tensors' bytes.
Result<std::string_view> header_of(std::string_view file) {
  if (file.size() < kLengthBytes)
    return Error{fmt::format("has {} bytes, needs at least {}", file.size(), kLengthBytes)};
  const uint64_t length = little_endian_64(file);
  if (length > kMaxSafetensorsHeader) {
    return Error{fmt::format("header is said to have {} bytes, at most {} are read", length, kMaxSafetensorsHeader)};
  }
  if (length > file.size() - kLengthBytes) {
    return Error{fmt::format("header is said to have {} bytes, but {} follow", length, file.size() - kLengthBytes)};
  }
  return file.substr(kLengthBytes, length);
}

// Each entry agrees with itself, and all of them in the order of their bytes fill `data_bytes` exactly. Sorts them so.
Status check_layout(std::vector<SafetensorsHeader::Entry>& entries, uint64_t data_bytes) {
  // Empty tensors first among those that begin at the same place.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  int64_t filled = 0;
  for (const auto& entry : entries) {
    const auto refuse = [&entry](const std::string& message) {
      return Error{fmt::format("tensor {}: {}", quoted_for_error(entry.name), message)};
    };
    const auto needed = tensor_bytes(entry.dtype, entry.shape);
    if (!needed) return refuse("shape has more bytes than can be counted");
    if (entry.end - entry.begin != *needed) {  // neither is negative, so the difference exists
      return refuse(
          fmt::format("data_offsets are [{}, {}], but shape and dtype need {} bytes", entry.begin, entry.end, *needed));
    }
    if (entry.begin != filled) {
      return refuse(fmt::format("begins at byte {}, but the tensors before it end at {}", entry.begin, filled));
    }
    filled = entry.end;
  }
  if (static_cast<uint64_t>(filled) != data_bytes) {
    return Error{fmt::format("the tensors have {} bytes, but {} follow the header", filled, data_bytes)};
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  auto mapping = MappedFile::open(path);
  if (!mapping) return mapping.error();
  auto file = parse(mapping.value().bytes(), path.string());
  if (file) file.value().mapping_ = std::move(mapping).take();
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::string_view file, std::string_view source_name) {
  const auto refuse = [source_name](const Error& error) {
    return Error{fmt::format("{}: not a valid safetensors file: {}", source_name, error.message)};
  };
  const auto json = header_of(file);
  if (!json) return refuse(json.error());
  auto header = parse_safetensors_header(json.value());
  if (!header) return refuse(header.error());
  const std::string_view data = file.substr(kLengthBytes + json.value().size());
  auto& entries = header.value().entries;
  if (const auto status = check_layout(entries, data.size()); !status) return refuse(status.error());

  SafetensorsFile parsed;
  parsed.metadata_ = std::move(header.value().metadata);
  const auto bytes = std::as_bytes(std::span(data));
  for (auto& entry : entries) {
    parsed.index_.emplace(entry.name, parsed.tensors_.size());
    const auto begin = static_cast<size_t>(entry.begin);
    parsed.tensors_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                               bytes.subspan(begin, static_cast<size_t>(entry.end) - begin)});
  }
  return parsed;
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace thinpipe
