// Writing a safetensors file: the header, then the tensors' bytes, under its name only when all of it is on the disk.
#include "checkpoint/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"

namespace thinpipe {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are written as they lie in memory");

Result<std::string> json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return Error{fmt::format("{} is not valid UTF-8", quoted_for_error(text))};
  }
}

Result<std::string> metadata_json(const SafetensorsMetadata& metadata) {
  std::string json = "\"__metadata__\":{";
  for (const auto& [key, text] : metadata) {
    const auto key_json = json_text(key);
    if (!key_json) return key_json.error();
    const auto value_json = json_text(text);
    if (!value_json) return value_json.error();
    json += fmt::format("{}{}:{}", json.back() == '{' ? "" : ",", key_json.value(), value_json.value());
  }
  return json + "}";
}

// Shapes and names are the program's own doing: a fault in them is a fault in the caller. The bytes of each.
std::vector<uint64_t> checked_sizes(std::span<const SafetensorsTensor> tensors) {
  std::unordered_set<std::string_view> names;
  std::vector<uint64_t> sizes;
  TP_CHECK(tensors.size() <= kMaxSafetensorsTensors, "{} tensors in one file", tensors.size());
  for (const auto& tensor : tensors) {
    TP_CHECK(tensor.name != "__metadata__", "a tensor may not be called __metadata__");
    TP_CHECK(names.insert(tensor.name).second, "tensor {} is given twice", tensor.name);
    TP_CHECK(tensor.shape.size() <= kMaxSafetensorsRank, "tensor {} has {} dimensions", tensor.name,
             tensor.shape.size());
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    TP_CHECK(bytes, "tensor {} has the shape [{}]", tensor.name, fmt::join(tensor.shape, ", "));
    sizes.push_back(static_cast<uint64_t>(*bytes));
  }
  return sizes;
}

Result<std::string> header_json(std::span<const SafetensorsTensor> tensors, std::span<const uint64_t> sizes,
                                const SafetensorsMetadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    const auto text = metadata_json(metadata);
    if (!text) return text.error();
    json += text.value();
  }
  uint64_t offset = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    const auto name = json_text(tensor.name);
    if (!name) return name.error();
    json +=
        fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json.size() == 1 ? "" : ",",
                    name.value(), dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), offset, offset + sizes[i]);
    offset += sizes[i];
  }
  json += '}';
  // Spaces until the tensors' bytes begin at a multiple of 8, where a mapped file can be read as numbers.
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxSafetensorsHeader) {
    return Error{fmt::format("header has {} bytes, needs at most {}", json.size(), kMaxSafetensorsHeader)};
  }
  return json;
}

std::string little_endian_64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    std::span<const SafetensorsTensor> tensors,
                                                    const SafetensorsMetadata& metadata) {
  auto sizes = checked_sizes(tensors);
  const auto json = header_json(tensors, sizes, metadata);
  if (!json) return Error{fmt::format("cannot write {}: {}", path.string(), json.error().message)};
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  auto status = file.value().append(little_endian_64(json.value().size()) + json.value());
  if (!status) return status.error();
  return SafetensorsWriter(std::move(file.value()), std::move(sizes));
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  TP_CHECK(next_ < sizes_.size() && bytes.size() == sizes_[next_], "tensor {} of {} has {} bytes", next_, sizes_.size(),
           bytes.size());
  ++next_;
  return file_.append({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Status SafetensorsWriter::commit() {
  TP_CHECK(next_ == sizes_.size(), "{} of {} tensors are written", next_, sizes_.size());
  return file_.commit();
}

Status write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                         const SafetensorsMetadata& metadata) {
  const auto sizes = checked_sizes(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    TP_CHECK(tensors[i].bytes.size() == sizes[i], "tensor {} of shape [{}] and dtype {} has {} bytes", tensors[i].name,
             fmt::join(tensors[i].shape, ", "), dtype_name(tensors[i].dtype), tensors[i].bytes.size());
  }
  auto writer = SafetensorsWriter::create(path, tensors, metadata);
  if (!writer) return writer.error();
  for (const auto& tensor : tensors) {
    if (auto status = writer.value().append(tensor.bytes); !status) return status;
  }
  return writer.value().commit();
}

}  // namespace thinpipe
