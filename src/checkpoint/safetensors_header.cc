#include "checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

namespace thinpipe {
namespace {

constexpr std::string_view kMetadataName = "__metadata__";

// Receives the parser's events. Every handler returns false to stop, after setting error_.
class HeaderEvents {
 public:
  SafetensorsHeader take() && { return std::move(header_); }
  const std::string& error() const { return error_; }

  bool start_object(size_t /*unknown*/) {
    switch (state_) {
      case State::kStart:
        state_ = State::kRoot;
        return true;
      case State::kMetadataStart:
        state_ = State::kMetadata;
        return true;
      case State::kEntryStart:
        state_ = State::kEntry;
        return true;
      default:
        return refuse_value("an object");
    }
  }

  bool key(std::string& name) {
    switch (state_) {
      case State::kRoot:
        return root_key(name);
      case State::kMetadata:
        if (header_.metadata.contains(name)) {
          return refuse(fmt::format("__metadata__ has the key {} twice", quoted_for_error(name)));
        }
        metadata_key_ = std::move(name);
        state_ = State::kMetadataText;
        return true;
      case State::kEntry:
        return field_key(name);
      default:
        return refuse_value("a key");
    }
  }

  bool end_object() {
    if (state_ == State::kEntry) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) return refuse_entry("needs all of dtype, shape, data_offsets");
      state_ = State::kRoot;
    } else {
      state_ = state_ == State::kMetadata ? State::kRoot : State::kDone;
    }
    return true;
  }

  bool string(std::string& text) {
    if (state_ == State::kMetadataText) {
      header_.metadata.emplace(std::move(metadata_key_), std::move(text));
      state_ = State::kMetadata;
      return true;
    }
    if (state_ != State::kDtype) return refuse_value("a text");
    const auto dtype = dtype_from_name(text);
    if (!dtype) {
      return refuse_entry(fmt::format("dtype {} is not one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL",
                                      quoted_for_error(text)));
    }
    entry().dtype = *dtype;
    state_ = State::kEntry;
    return true;
  }

  bool start_array(size_t /*unknown*/) {
    if (state_ == State::kShapeStart) {
      state_ = State::kShape;
    } else if (state_ == State::kOffsetsStart) {
      state_ = State::kOffsets;
      offsets_.clear();
    } else {
      return refuse_value("a list");
    }
    return true;
  }

  bool number_unsigned(uint64_t number) {
    if (state_ != State::kShape && state_ != State::kOffsets) return refuse_value("a number");
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return refuse_entry(fmt::format("{} is too large for a length or an offset", number));
    }
    auto& numbers = state_ == State::kShape ? entry().shape : offsets_;
    const size_t most = state_ == State::kShape ? kMaxSafetensorsRank : 2;
    if (numbers.size() == most) {
      return refuse_entry(state_ == State::kShape ? fmt::format("has more than {} dimensions", most)
                                                  : std::string("data_offsets needs exactly 2 numbers"));
    }
    numbers.push_back(static_cast<int64_t>(number));
    return true;
  }

  bool end_array() {
    if (state_ == State::kOffsets) {
      if (offsets_.size() != 2) return refuse_entry("data_offsets needs exactly 2 numbers");
      entry().begin = offsets_[0];
      entry().end = offsets_[1];
    }
    state_ = State::kEntry;
    return true;
  }

  bool null() { return refuse_value("null"); }
  bool boolean(bool /*value*/) { return refuse_value("true or false"); }
  bool number_integer(int64_t /*negative*/) { return refuse_value("a negative number"); }
  bool number_float(double /*value*/, const std::string& /*text*/) {
    return refuse_value("a number that is not whole");
  }
  bool binary(std::vector<uint8_t>& /*bytes*/) { return refuse_value("binary data"); }
  bool parse_error(size_t position, const std::string& /*token*/, const nlohmann::detail::exception& /*error*/) {
    return refuse(fmt::format("header is not valid JSON at its byte {}", position));
  }

 private:
  // What the next event may be; the names say what has just been read or is expected.
  enum class State {
    kStart,
    kRoot,
    kMetadataStart,
    kMetadata,
    kMetadataText,
    kEntryStart,
    kEntry,
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kDone
  };

  SafetensorsHeader::Entry& entry() { return header_.entries.back(); }

  bool root_key(std::string& name) {
    if (!names_.insert(name).second) return refuse(fmt::format("the name {} stands twice", quoted_for_error(name)));
    if (name == kMetadataName) {
      state_ = State::kMetadataStart;
      return true;
    }
    if (header_.entries.size() == kMaxSafetensorsTensors) {
      return refuse(fmt::format("has more than {} tensors", kMaxSafetensorsTensors));
    }
    header_.entries.emplace_back().name = std::move(name);
    has_dtype_ = has_shape_ = has_offsets_ = false;
    state_ = State::kEntryStart;
    return true;
  }

  bool field_key(const std::string& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      seen = &has_dtype_;
      state_ = State::kDtype;
    } else if (name == "shape") {
      seen = &has_shape_;
      state_ = State::kShapeStart;
    } else if (name == "data_offsets") {
      seen = &has_offsets_;
      state_ = State::kOffsetsStart;
    } else {
      return refuse_entry(fmt::format("has a field {}, needs dtype, shape, data_offsets only", quoted_for_error(name)));
    }
    if (*seen) return refuse_entry(fmt::format("has {} twice", name));
    *seen = true;
    return true;
  }

  bool refuse(std::string message) {
    error_ = std::move(message);
    return false;
  }

  bool refuse_entry(std::string_view message) {
    return refuse(fmt::format("tensor {}: {}", quoted_for_error(entry().name), message));
  }

  bool refuse_value(std::string_view found) {
    switch (state_) {
      case State::kMetadataStart:
        return refuse(fmt::format("__metadata__ is {}, needs an object of texts", found));
      case State::kMetadataText:
        return refuse(fmt::format("__metadata__ key {} is {}, needs a text", quoted_for_error(metadata_key_), found));
      case State::kEntryStart:
        return refuse_entry(fmt::format("is {}, needs an object with dtype, shape, data_offsets", found));
      case State::kDtype:
        return refuse_entry(fmt::format("dtype is {}, needs a text such as \"F32\"", found));
      case State::kShapeStart:
      case State::kShape:
        return refuse_entry(fmt::format("shape has {}, needs a list of whole numbers from 0", found));
      case State::kOffsetsStart:
      case State::kOffsets:
        return refuse_entry(fmt::format("data_offsets has {}, needs a list of 2 whole numbers from 0", found));
      default:
        return refuse(fmt::format("header is {}, needs an object of tensors", found));
    }
  }

  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  State state_ = State::kStart;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::vector<int64_t> offsets_;
  std::string metadata_key_;
  std::string error_;
};

}  // namespace

std::string quoted_for_error(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  const bool cut = text.size() > kMaxShown;
  const nlohmann::json shown = std::string(text.substr(0, kMaxShown));
  return shown.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + (cut ? "..." : "");
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json) {
  if (json.empty() || json.front() != '{') return Error{"header does not start with '{'"};
  // The JSON parser takes a zero byte for the end of the text and would let anything follow it.
  if (const size_t zero = json.find('\0'); zero != std::string_view::npos) {
    return Error{fmt::format("header is not valid JSON at its byte {}", zero + 1)};
  }
  // Padding is spaces; other white space after the object is somebody else's format.
  json = json.substr(0, json.find_last_not_of(' ') + 1);
  if (json.back() != '}') return Error{"header does not end with '}' and spaces"};

  HeaderEvents events;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events)) return Error{events.error()};
  return std::move(events).take();
}

}  // namespace thinpipe
