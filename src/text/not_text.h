// Tells files that are not text, and files whose texts nothing marks off, from text. Used when a file of a corpus is
// opened (text_input.h).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace thinpipe {

// Why the file is refused and what would help, "is not text but a PDF; convert it to text, or take it away"; empty if
// it may be text. `beginning`: its first bytes, decompressed. Names keys of the config if `by_config`.
std::string why_not_text(const std::filesystem::path& path, std::string_view beginning, bool by_config);

// The command that makes a .jsonl file of one JSON document, which is an array of the texts or a text itself.
std::string json_conversion(const std::filesystem::path& path);

}  // namespace thinpipe
