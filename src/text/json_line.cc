#include "text/json_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/line.h"

namespace thinpipe {
namespace {

using Json = nlohmann::json;

constexpr size_t kShownFields = 8;
constexpr size_t kShownNameBytes = 40;

// Takes the events of the parser, so that nothing but the field itself is kept.
class FieldFinder final : public nlohmann::json_sax<Json> {
 public:
  explicit FieldFinder(std::string_view field) : field_(field) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("true or false"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool string(string_t& text) override {
    if (depth_ == 1 && in_field_) text_ = std::move(text);
    return value("a string");
  }
  bool binary(binary_t&) override { return value("binary"); }
  bool start_object(size_t) override { return open("an object"); }
  bool start_array(size_t) override { return open("an array"); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    in_field_ = name == field_;
    if (fields_++ < kShownFields) names_ += (names_.empty() ? "" : ", ") + in_quotes(name, kShownNameBytes);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    fault_at_ = position;
    return false;
  }

  JsonLine result(bool parsed, size_t line_bytes) {
    JsonLine line;
    if (!parsed) {
      line.fault = "not valid JSON";
      line.fault_at = std::min(std::max<size_t>(fault_at_, 1) - 1, line_bytes);
    } else if (root_ != "an object") {
      line.fault = fmt::format("{}, where a .jsonl file has an object", root_);
    } else if (found_ == "a string") {
      line.document = std::move(text_);
    } else {
      line.wrong_field = true;
      const auto name = in_quotes(field_, kShownNameBytes);
      line.fault = found_.empty() ? fmt::format("an object without the field {}; {}", name, fields_text())
                                  : fmt::format("the field {} holds {}, not a string; {}", name, found_, fields_text());
    }
    return line;
  }

 private:
  bool value(std::string_view kind) {
    if (depth_ == 0) root_ = kind;
    if (depth_ == 1 && in_field_) found_ = kind;
    return true;
  }
  bool open(std::string_view kind) {
    value(kind);
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  std::string fields_text() const {
    if (fields_ == 0) return "it has no fields";
    return "it has " + names_ + (fields_ > kShownFields ? fmt::format(" and {} more", fields_ - kShownFields) : "");
  }

  std::string_view field_;
  std::string_view root_;   // what the whole line is
  std::string_view found_;  // what the field holds; empty if it is not there
  std::string text_;
  std::string names_;
  size_t fields_ = 0;
  size_t depth_ = 0;
  bool in_field_ = false;  // the value that comes at depth 1 is that of the field
  size_t fault_at_ = 0;
};

// The code unit of an escape \uXXXX, if there is one at this place.
std::optional<uint16_t> escaped_unit(std::string_view line, size_t at) {
  if (line.substr(std::min(at, line.size()), 2) != "\\u" || line.size() < at + kEscapeBytes) return std::nullopt;
  uint16_t unit = 0;
  const char* end = line.data() + at + kEscapeBytes;
  const auto parsed = std::from_chars(line.data() + at + 2, end, unit, 16);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(unit) : std::nullopt;
}

bool is_first_half(uint16_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_second_half(uint16_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

}  // namespace

JsonLine read_json_line(const std::string& line, std::string_view field) {
  FieldFinder finder(field);
  const bool parsed = Json::sax_parse(line, &finder);
  return finder.result(parsed, line.size());
}

std::optional<size_t> find_half_escape(std::string_view line, size_t from) {
  for (size_t at = line.find('\\', from); at != std::string_view::npos; at = line.find('\\', at)) {
    const auto unit = escaped_unit(line, at);
    if (!unit) {
      at += 2;
    } else if (is_first_half(*unit)) {
      const auto second = escaped_unit(line, at + kEscapeBytes);
      if (!second || !is_second_half(*second)) return at;
      at += 2 * kEscapeBytes;
    } else if (is_second_half(*unit)) {
      return at;
    } else {
      at += kEscapeBytes;
    }
  }
  return std::nullopt;
}

uint64_t replace_half_escapes(std::string& line, std::string_view by) {
  std::string kept;
  size_t from = 0;
  uint64_t count = 0;
  for (auto at = find_half_escape(line); at; at = find_half_escape(line, from)) {
    kept.append(line, from, *at - from).append(by);
    from = *at + kEscapeBytes;
    ++count;
  }
  if (count > 0) line = kept.append(line, from);
  return count;
}

}  // namespace thinpipe
