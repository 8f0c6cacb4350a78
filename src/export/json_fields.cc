#include "export/json_fields.h"

#include <fmt/format.h>

namespace thinpipe {

using Json = nlohmann::json;

std::string quoted_text(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  const Json cut = std::string(text.substr(0, kMaxShown));
  return cut.dump(-1, ' ', true, Json::error_handler_t::replace) + (text.size() > kMaxShown ? "..." : "");
}

std::string shown_for_error(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return value.is_string() ? quoted_text(value.get_ref<const std::string&>()) : value.dump();
}

const Json* JsonFields::find(const char* key) const {
  if (!error_.empty()) return nullptr;
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> JsonFields::maybe_count(const char* key, int64_t least, int64_t most) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  // Unsigned first: a number above int64 would turn negative.
  if (value->is_number_unsigned() && value->get<uint64_t>() >= static_cast<uint64_t>(least) &&
      value->get<uint64_t>() <= static_cast<uint64_t>(most)) {
    return value->get<int64_t>();
  }
  refuse(fmt::format("{} is {}, needs a whole number from {} to {}", key, shown_for_error(*value), least, most));
  return std::nullopt;
}

int64_t JsonFields::count(const char* key, int64_t least, int64_t most) {
  const auto value = maybe_count(key, least, most);
  if (!value) refuse(fmt::format("has no {}, needs a whole number from {} to {}", key, least, most));
  return value.value_or(least);
}

std::optional<double> JsonFields::maybe_number(const char* key, double most) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number() && value->get<double>() > 0 && value->get<double>() <= most) return value->get<double>();
  refuse(fmt::format("{} is {}, needs a number above 0 and up to {}", key, shown_for_error(*value), most));
  return std::nullopt;
}

double JsonFields::number(const char* key, double most) {
  const auto value = maybe_number(key, most);
  if (!value) refuse(fmt::format("has no {}, needs a number above 0 and up to {}", key, most));
  return value.value_or(most);
}

std::optional<std::string> JsonFields::maybe_text(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  refuse(fmt::format("{} is {}, needs a text", key, shown_for_error(*value)));
  return std::nullopt;
}

std::string JsonFields::text(const char* key) {
  const auto value = maybe_text(key);
  if (!value) refuse(fmt::format("has no {}, needs a text", key));
  return value.value_or("");
}

bool JsonFields::flag(const char* key, bool absent) {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  refuse(fmt::format("{} is {}, needs true or false", key, shown_for_error(*value)));
  return absent;
}

}  // namespace thinpipe
