// Takes the fields out of one JSON object whose keys are all known: the first that is missing or of another type makes
// it fail, as does one left over. For the small files preparation keeps.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace thinpipe {

// `object` must outlive it. After a failure every field reads as zero or empty.
class ExactFields {
 public:
  explicit ExactFields(const nlohmann::json& object) : object_(object), ok_(object.is_object()) {}

  uint64_t count(const char* key) {
    const auto* value = take(key);
    return check(value != nullptr && value->is_number_unsigned()) ? value->get<uint64_t>() : 0;
  }
  double number(const char* key) {
    const auto* value = take(key);
    const bool fits = check(value != nullptr && value->is_number() && std::isfinite(value->get<double>()));
    return fits ? value->get<double>() : 0;
  }
  std::string text(const char* key) {
    const auto* value = take(key);
    return check(value != nullptr && value->is_string()) ? value->get<std::string>() : std::string();
  }
  std::string sha256(const char* key) {
    std::string value = text(key);
    check(value.size() == 64 && value.find_first_not_of("0123456789abcdef") == std::string::npos);
    return value;
  }
  // What `read` makes of the object under that key; `read` takes all of its fields.
  template <class Read>
  auto inner(const char* key, const Read& read) -> decltype(read(*this)) {
    const auto* value = take(key);
    if (!check(value != nullptr)) return {};
    ExactFields fields(*value);
    auto made = read(fields);
    check(fields.complete());
    return made;
  }
  bool complete() const { return ok_ && taken_ == object_.size(); }

 private:
  const nlohmann::json* take(const char* key) {
    if (!ok_) return nullptr;
    const auto found = object_.find(key);
    ++taken_;
    return found == object_.end() ? nullptr : &*found;
  }
  bool check(bool holds) { return ok_ = ok_ && holds; }

  const nlohmann::json& object_;
  bool ok_;
  size_t taken_ = 0;
};

}  // namespace thinpipe
