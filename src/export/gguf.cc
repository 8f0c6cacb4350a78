#include "export/gguf.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace thinpipe {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr uint32_t kVersion = 3;

// The format's numbers for types of values.
constexpr uint32_t kUint32 = 4;
constexpr uint32_t kInt32 = 5;
constexpr uint32_t kFloat32 = 6;
constexpr uint32_t kBool = 7;
constexpr uint32_t kText = 8;
constexpr uint32_t kArray = 9;

template <class Number>
void append_number(std::string& bytes, Number number) {
  char raw[sizeof number];
  std::memcpy(raw, &number, sizeof number);
  bytes.append(raw, sizeof number);
}

void append_text(std::string& bytes, std::string_view text) {
  append_number(bytes, uint64_t{text.size()});
  bytes += text;
}

uint64_t padding_after(uint64_t bytes) { return (kGgufAlignment - bytes % kGgufAlignment) % kGgufAlignment; }

}  // namespace

int64_t ggml_block_values(GgmlType type) { return type == GgmlType::kQ8_0 ? 32 : 1; }

int64_t ggml_block_bytes(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return 4;
    case GgmlType::kF16:
    case GgmlType::kBf16:
      return 2;
    case GgmlType::kQ8_0:
      return 34;  // a 16-bit scale and 32 bytes
  }
  TP_CHECK(false, "ggml type {}", static_cast<uint32_t>(type));
}

void GgufMetadata::begin(std::string_view key, uint32_t type) {
  append_text(bytes_, key);
  append_number(bytes_, type);
  ++count_;
}

void GgufMetadata::add_uint32(std::string_view key, uint32_t value) {
  begin(key, kUint32);
  append_number(bytes_, value);
}

void GgufMetadata::add_float32(std::string_view key, float value) {
  begin(key, kFloat32);
  append_number(bytes_, value);
}

void GgufMetadata::add_bool(std::string_view key, bool value) {
  begin(key, kBool);
  append_number(bytes_, static_cast<uint8_t>(value));
}

void GgufMetadata::add_text(std::string_view key, std::string_view value) {
  begin(key, kText);
  append_text(bytes_, value);
}

void GgufMetadata::add_texts(std::string_view key, std::span<const std::string> values) {
  begin(key, kArray);
  append_number(bytes_, kText);
  append_number(bytes_, uint64_t{values.size()});
  for (const auto& value : values) append_text(bytes_, value);
}

void GgufMetadata::add_float32s(std::string_view key, std::span<const float> values) {
  begin(key, kArray);
  append_number(bytes_, kFloat32);
  append_number(bytes_, uint64_t{values.size()});
  for (const float value : values) append_number(bytes_, value);
}

void GgufMetadata::add_int32s(std::string_view key, std::span<const int32_t> values) {
  begin(key, kArray);
  append_number(bytes_, kInt32);
  append_number(bytes_, uint64_t{values.size()});
  for (const int32_t value : values) append_number(bytes_, value);
}

uint64_t GgufTensor::bytes() const {
  TP_CHECK(!shape.empty() && shape.back() % ggml_block_values(type) == 0, "tensor {} cannot be of type {}", name,
           static_cast<uint32_t>(type));
  uint64_t values = 1;
  for (const int64_t length : shape) values *= static_cast<uint64_t>(length);
  return values / static_cast<uint64_t>(ggml_block_values(type)) * static_cast<uint64_t>(ggml_block_bytes(type));
}

Result<GgufWriter> GgufWriter::create(const std::filesystem::path& path, const GgufMetadata& metadata,
                                      std::span<const GgufTensor> tensors) {
  std::string header = "GGUF";
  append_number(header, kVersion);
  append_number(header, uint64_t{tensors.size()});
  append_number(header, metadata.count());
  header += metadata.bytes();
  std::vector<uint64_t> sizes;
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    append_text(header, tensor.name);
    append_number(header, static_cast<uint32_t>(tensor.shape.size()));
    for (auto length = tensor.shape.rbegin(); length != tensor.shape.rend(); ++length) append_number(header, *length);
    append_number(header, static_cast<uint32_t>(tensor.type));
    append_number(header, offset);
    sizes.push_back(tensor.bytes());
    offset += sizes.back() + padding_after(sizes.back());
  }
  header.append(padding_after(header.size()), '\0');

  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  if (const auto status = file.value().append(header); !status) return status.error();
  return GgufWriter(std::move(file.value()), std::move(sizes));
}

Status GgufWriter::append(std::string_view bytes) {
  TP_CHECK(next_ < sizes_.size() && bytes.size() == sizes_[next_], "tensor {} of {} has {} bytes", next_, sizes_.size(),
           bytes.size());
  ++next_;
  if (auto status = file_.append(bytes); !status) return status;
  return file_.append(std::string(padding_after(bytes.size()), '\0'));
}

Status GgufWriter::commit() {
  TP_CHECK(next_ == sizes_.size(), "{} of {} tensors are written", next_, sizes_.size());
  return file_.commit();
}

}  // namespace thinpipe
