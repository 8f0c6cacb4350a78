// A line of a .jsonl file: the document in it, or what the line is instead. Used by corpus.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace thinpipe {

struct JsonLine {
  std::optional<std::string> document;

  // If there is none: what is wrong, at which byte of the line.
  std::string fault;
  size_t fault_at = 0;
  bool wrong_field = false;  // the line is an object, but `field` is not there or holds no string
};

// The string in `field` of the object that the line should be; the last one, if the field is there twice. Memory is
// bounded by the length of the line, whatever else it holds.
JsonLine read_json_line(const std::string& line, std::string_view field);

// The first escape from byte `from` on that stands for half a character, such as \ud83d without the \ude00 that belongs
// to it. Python writes it for text that it could not decode. `from` must not be inside an escape.
std::optional<size_t> find_half_escape(std::string_view line, size_t from = 0);
inline constexpr size_t kEscapeBytes = 6;

// Replaces all of them by the escape `by`, or removes them if it is empty. Returns how many there were.
uint64_t replace_half_escapes(std::string& line, std::string_view by);

}  // namespace thinpipe
