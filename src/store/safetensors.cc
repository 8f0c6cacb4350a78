// Reads and writes safetensors files. The header's JSON is read one tensor at a time, so a hostile header costs no more
// memory than its size allows.
#include "store/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>
#include <utility>

namespace thinpipe {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "numbers are copied from memory without conversion");

constexpr size_t kLengthBytes = 8;
constexpr std::string_view kMetadataName = "__metadata__";

struct DtypeInfo {
  std::string_view name;
  int64_t bytes;
};

// In the order of Dtype.
constexpr std::array<DtypeInfo, 10> kDtypes{{{"F64", 8},
                                             {"F32", 4},
                                             {"F16", 2},
                                             {"BF16", 2},
                                             {"I64", 8},
                                             {"I32", 4},
                                             {"I16", 2},
                                             {"I8", 1},
                                             {"U8", 1},
                                             {"BOOL", 1}}};

const DtypeInfo& info(Dtype dtype) {
  const auto index = static_cast<size_t>(dtype);
  TP_CHECK(index < kDtypes.size(), "dtype {} does not exist", index);
  return kDtypes[index];
}

// ---- The header ----

struct HeaderEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  // Relative to the first byte after the header; begin <= end is not yet checked.
  int64_t begin = 0;
  int64_t end = 0;
};

// Thrown out of the JSON parser's callback to stop it; caught in this file.
struct HeaderError {
  std::string message;
};

// A value for an error message.
std::string value_for_error(const Json& value) {
  if (value.is_string()) return quoted_for_error(value.get_ref<const std::string&>());
  return value.is_structured() ? value.type_name() : value.dump();
}

// The callback of the JSON parser. It takes each entry of the header as soon as it is complete and lets the parser
// discard it: the parser searches everything it has kept of an object whenever something inside the object ends.
class HeaderReader {
 public:
  // `depth` counts the objects and lists around the event. Returns whether the parser keeps the value.
  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    switch (event) {
      case Event::key:
        depth == 1 ? begin_entry(value.get_ref<const std::string&>()) : add_field(value.get_ref<const std::string&>());
        return true;
      case Event::object_start:
        if (depth > 1) refuse("has an object inside it");
        fields_.clear();
        return true;
      case Event::array_start:
        if (depth == 1) refuse("is a list, needs an object");
        if (depth > 2) refuse("has a list in a list");
        list_length_ = 0;
        return true;
      case Event::value:
        if (depth == 1) refuse(fmt::format("is a {}, needs an object", value.type_name()));
        if (depth == 3 && ++list_length_ > kMaxSafetensorsRank) {
          refuse(fmt::format("has a list of more than {} numbers", kMaxSafetensorsRank));
        }
        return true;
      case Event::object_end:
        if (depth == 0) return true;
        name_ == kMetadataName ? take_metadata(value) : take_tensor(value);
        return false;
      case Event::array_end:
        return true;
    }
    return true;
  }

  std::vector<HeaderEntry> entries;  // in the order of the header
  SafetensorsMetadata metadata;

 private:
  // Refuses the entry that is being read.
  [[noreturn]] void refuse(std::string_view message) const {
    const std::string_view kind = name_ == kMetadataName ? "" : "tensor ";
    throw HeaderError{fmt::format("{}{}: {}", kind, quoted_for_error(name_), message)};
  }

  void begin_entry(const std::string& name) {
    name_ = name;
    if (!names_.insert(name).second) refuse("is listed twice");
    if (name != kMetadataName && entries.size() == kMaxSafetensorsTensors) {
      throw HeaderError{fmt::format("has more than {} tensors", kMaxSafetensorsTensors)};
    }
  }

  void add_field(const std::string& field) {
    if (name_ != kMetadataName && field != "dtype" && field != "shape" && field != "data_offsets") {
      refuse(fmt::format("has a field {}, needs dtype, shape, data_offsets only", quoted_for_error(field)));
    }
    if (!fields_.insert(field).second) refuse(fmt::format("has the field {} twice", quoted_for_error(field)));
  }

  void take_metadata(const Json& object) {
    for (const auto& [key, text] : object.items()) {
      if (!text.is_string()) refuse(fmt::format("{} is not text", quoted_for_error(key)));
      metadata.emplace(key, text.get<std::string>());
    }
  }

  void take_tensor(const Json& object) {
    if (object.size() != 3) refuse("needs all of dtype, shape, data_offsets");
    const Json& dtype = object["dtype"];
    const auto known = dtype.is_string() ? dtype_from_name(dtype.get_ref<const std::string&>()) : std::nullopt;
    if (!known) {
      refuse(fmt::format("dtype {} is not one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL",
                         value_for_error(dtype)));
    }
    const auto offsets = numbers(object["data_offsets"], "data_offsets");
    if (offsets.size() != 2) refuse("data_offsets needs exactly 2 numbers");
    entries.push_back({name_, *known, numbers(object["shape"], "shape"), offsets[0], offsets[1]});
  }

  std::vector<int64_t> numbers(const Json& list, std::string_view field) const {
    std::vector<int64_t> found;
    if (!list.is_array()) refuse(fmt::format("{} is a {}, needs a list of numbers", field, list.type_name()));
    for (const Json& number : list) {
      if (!number.is_number_unsigned() || number.get<uint64_t>() > INT64_MAX) {
        refuse(fmt::format("{} has {}, needs whole numbers from 0 to {}", field, value_for_error(number), INT64_MAX));
      }
      found.push_back(number.get<int64_t>());
    }
    return found;
  }

  std::string name_;                       // of the entry that is being read
  std::set<std::string> fields_;           // of that entry, so far
  size_t list_length_ = 0;                 // of the list that is being read, so far
  std::unordered_set<std::string> names_;  // of all entries
};

// Errors do not name the file.
Status parse_header(std::string_view json, HeaderReader& reader) {
  if (json.empty() || json.front() != '{') return Error{"header does not start with '{'"};
  // The JSON parser treats a zero byte as the end and would accept anything after it.
  if (const size_t zero = json.find('\0'); zero != std::string_view::npos) {
    return Error{fmt::format("header is not valid JSON at its byte {}", zero + 1)};
  }
  // The format pads with spaces only.
  json = json.substr(0, json.find_last_not_of(' ') + 1);
  if (json.back() != '}') return Error{"header does not end with '}' and spaces"};
  try {
    [[maybe_unused]] const Json nothing_left = Json::parse(json.begin(), json.end(), std::ref(reader));
  } catch (const HeaderError& error) {
    return Error{error.message};
  } catch (const Json::parse_error& error) {
    return Error{fmt::format("header is not valid JSON at its byte {}", error.byte)};
  } catch (const Json::exception&) {
    return Error{"header has a number that is too large"};
  }
  return {};
}

// The header's JSON. The rest of the file holds the tensors' bytes.
Result<std::string_view> header_of(std::string_view file) {
  if (file.size() < kLengthBytes) {
    return Error{fmt::format("has {} bytes, needs at least {}", file.size(), kLengthBytes)};
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const uint64_t rest = file.size() - kLengthBytes;
  if (length > kMaxSafetensorsHeader) {
    return Error{fmt::format("the header's length is {} bytes, needs at most {}", length, kMaxSafetensorsHeader)};
  }
  if (length > rest) return Error{fmt::format("the header's length is {} bytes, but only {} follow", length, rest)};
  return file.substr(kLengthBytes, length);
}

// Checks each entry, and that together they fill `data_bytes` exactly. Sorts them by the position of their bytes.
Status check_layout(std::vector<HeaderEntry>& entries, uint64_t data_bytes) {
  // Empty tensors come first among those that begin at the same position.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  int64_t filled = 0;
  for (const auto& entry : entries) {
    const auto refuse = [&entry](const std::string& message) {
      return Error{fmt::format("tensor {}: {}", quoted_for_error(entry.name), message)};
    };
    const auto needed = tensor_bytes(entry.dtype, entry.shape);
    if (!needed) return refuse("shape has too many bytes");
    if (entry.end - entry.begin != *needed) {  // neither is negative, so the difference does not overflow
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

// ---- Writing ----

// Shapes and names come from our own code, so mistakes in them are bugs. Returns the bytes of each tensor.
std::vector<uint64_t> checked_sizes(std::span<const SafetensorsTensor> tensors) {
  std::unordered_set<std::string_view> names;
  std::vector<uint64_t> sizes;
  TP_CHECK(tensors.size() <= kMaxSafetensorsTensors, "{} tensors in one file", tensors.size());
  for (const auto& tensor : tensors) {
    TP_CHECK(tensor.name != kMetadataName, "a tensor may not be called {}", kMetadataName);
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
  try {
    if (!metadata.empty()) json += fmt::format("\"{}\":{}", kMetadataName, Json(metadata).dump());
    uint64_t offset = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      json += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json.size() == 1 ? "" : ",",
                          Json(tensors[i].name).dump(), dtype_name(tensors[i].dtype), fmt::join(tensors[i].shape, ","),
                          offset, offset + sizes[i]);
      offset += sizes[i];
    }
  } catch (const Json::exception&) {
    return Error{"a tensor's name or a text of the metadata is not valid UTF-8"};
  }
  json += '}';
  // Pad with spaces so that the tensors' bytes begin at a multiple of 8, where a mapped file can be read as numbers.
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxSafetensorsHeader) {
    return Error{fmt::format("header has {} bytes, needs at most {}", json.size(), kMaxSafetensorsHeader)};
  }
  return json;
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return info(dtype).name; }
int64_t dtype_bytes(Dtype dtype) { return info(dtype).bytes; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::optional<int64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape) {
  int64_t product = dtype_bytes(dtype);
  bool empty = false;
  for (const int64_t length : shape) {
    if (length < 0) return std::nullopt;
    if (length == 0) {
      // A caller may multiply the lengths in any order: the non-zero ones must not overflow either.
      empty = true;
    } else if (__builtin_mul_overflow(product, length, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

std::string quoted_for_error(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  const Json shown = std::string(text.substr(0, kMaxShown));
  return shown.dump(-1, ' ', true, Json::error_handler_t::replace) + (text.size() > kMaxShown ? "..." : "");
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  auto mapping = TRY(MappedFile::open(path));
  auto file = TRY(parse(mapping.bytes(), path.string()));
  file.mapping_ = std::move(mapping);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::string_view file, std::string_view source_name) {
  const auto checked = [&]() -> Result<SafetensorsFile> {
    const std::string_view json = TRY(header_of(file));
    HeaderReader header;
    TRY(parse_header(json, header));
    const auto data = std::as_bytes(std::span(file.substr(kLengthBytes + json.size())));
    TRY(check_layout(header.entries, data.size()));

    SafetensorsFile parsed;
    parsed.metadata_ = std::move(header.metadata);
    for (auto& entry : header.entries) {
      parsed.index_.emplace(entry.name, parsed.tensors_.size());
      const auto begin = static_cast<size_t>(entry.begin), end = static_cast<size_t>(entry.end);
      parsed.tensors_.push_back(
          {std::move(entry.name), entry.dtype, std::move(entry.shape), data.subspan(begin, end - begin)});
    }
    return parsed;
  };
  auto parsed = checked();
  if (parsed) return parsed;
  return Error{fmt::format("{}: not a valid safetensors file: {}", source_name, parsed.error().message)};
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::forget(const SafetensorsTensor& tensor) const {
  if (mapping_) mapping_->forget({reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()});
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    std::span<const SafetensorsTensor> tensors,
                                                    const SafetensorsMetadata& metadata) {
  auto sizes = checked_sizes(tensors);
  const auto json = header_json(tensors, sizes, metadata);
  if (!json) return Error{fmt::format("cannot write {}: {}", path.string(), json.error().message)};
  const uint64_t length = json.value().size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, kLengthBytes);
  auto file = TRY(AtomicFile::create(path));
  TRY(file.append(header + json.value()));
  return SafetensorsWriter(std::move(file), std::move(sizes));
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
  auto writer = TRY(SafetensorsWriter::create(path, tensors, metadata));
  for (const auto& tensor : tensors) TRY(writer.append(tensor.bytes));
  return writer.commit();
}

}  // namespace thinpipe
