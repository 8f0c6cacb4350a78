// Values out of one JSON object of a file that somebody else wrote. The first that is not what it must be is the error;
// all later ones are passed over. Private to this folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace thinpipe {

// A value as it may stand in an error: one line, ASCII, not long. Lists and objects are not printed.
std::string shown_for_error(const nlohmann::json& value);
std::string quoted_text(std::string_view text);

class JsonFields {
 public:
  // Both must outlive it.
  JsonFields(const nlohmann::json& object, std::string& error) : object_(object), error_(error) {
    if (!object.is_object()) refuse("is " + shown_for_error(object) + ", needs an object");
  }

  // nullptr when the key is absent, null, or there is an error already.
  const nlohmann::json* find(const char* key) const;

  // Absent or null: an error for those without a default.
  int64_t count(const char* key, int64_t least, int64_t most);
  std::optional<int64_t> maybe_count(const char* key, int64_t least, int64_t most);
  // From above 0 up to `most`.
  double number(const char* key, double most);
  std::optional<double> maybe_number(const char* key, double most);
  std::string text(const char* key);
  std::optional<std::string> maybe_text(const char* key);
  bool flag(const char* key, bool absent);

  void refuse(const std::string& message) {
    if (error_.empty()) error_ = message;
  }
  bool ok() const { return error_.empty(); }

 private:
  const nlohmann::json& object_;
  std::string& error_;
};

}  // namespace thinpipe
