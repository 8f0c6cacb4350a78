#include "text/not_text.h"

#include <fmt/format.h>

#include "text/decompression.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

using namespace std::string_view_literals;

struct Binary {
  std::string_view magic;
  std::string_view name;
  size_t at = 0;                 // where in the file
  std::string_view ending = {};  // with which the file would be read
};

constexpr Binary kBinaries[] = {
    {"%PDF-"sv, "a PDF"},
    {"PK\x03\x04"sv, "a zip archive, as .docx, .odt and .epub are"},
    {"ustar"sv, "a tar archive", 257},
    {"\x7F"
     "ELF"sv,
     "a program"},
    {"\x89PNG"sv, "a picture"},
    {"\xFF\xD8\xFF"sv, "a picture"},
    {"GIF8"sv, "a picture"},
    {"SQLite format 3"sv, "a database"},
    {"PAR1"sv, "a Parquet file"},
    {"\x1F\x8B"sv, "compressed by gzip", 0, ".gz"},
    {"\x28\xB5\x2F\xFD"sv, "compressed by zstd", 0, ".zst"},
    {"\xFD"
     "7zXZ"sv,
     "compressed by xz"},
    {"BZh"sv, "compressed by bzip2"},
    {"7z\xBC\xAF"sv, "a 7z archive"},
};

std::string why_binary(const fs::path& path, std::string_view beginning) {
  const bool decompressed = compression_of(path) != Compression::kNone;
  for (const auto& binary : kBinaries) {
    if (beginning.size() < binary.at || !beginning.substr(binary.at).starts_with(binary.magic)) continue;
    std::string remedy = "convert it to text, or take it away";
    if (!binary.ending.empty()) {
      remedy = decompressed ? "decompress it once" : fmt::format("let its name end in {}", binary.ending);
    }
    return fmt::format("{} not text but {}; {}", decompressed ? "holds, once decompressed," : "is", binary.name,
                       remedy);
  }
  return {};
}

// A word of a shell's command.
std::string shell_word(const fs::path& path) {
  const std::string text = path.string();
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  if (text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char one : text) word += one == '\'' ? R"('\'')" : std::string(1, one);
  return word + '\'';
}

// A command that gives the file to a line of Python, which writes the lines of a .jsonl file.
std::string conversion(const fs::path& path, std::string_view python) {
  const auto compression = compression_of(path);
  const auto reader = compression == Compression::kGzip   ? "zcat"
                      : compression == Compression::kZstd ? "zstdcat"
                                                          : "cat";
  return fmt::format("{} {} | python3 -c '{}' > {}", reader, shell_word(path), python,
                     shell_word(path.string() + ".jsonl"));
}

std::string why_table(const fs::path& path, std::string_view separated, std::string_view dialect, bool by_config) {
  const auto command = conversion(
      path, fmt::format("import csv,json,sys; csv.field_size_limit(2**31-1); [print(json.dumps(row)) for row in "
                        "csv.DictReader(sys.stdin{})]",
                        dialect));
  return fmt::format(
      "is a table ({}), which does not say where its texts are; make a .jsonl file of it: {} and {}; or "
      "rename it to .txt, to take it as it is",
      separated, command,
      by_config ? "set data.field to the column that holds the text" : "call the column of the text text");
}

}  // namespace

std::string why_not_text(const fs::path& path, std::string_view beginning, bool by_config) {
  if (auto why = why_binary(path, beginning); !why.empty()) return why;
  const auto ending = plain_name(path).extension();
  if (ending == ".csv") return why_table(path, "CSV", "", by_config);
  if (ending == ".tsv") return why_table(path, "TSV", R"(,delimiter="\t")", by_config);
  if (ending != ".json" && ending != ".ndjson") return {};
  const size_t first = beginning.find_first_not_of(" \t\r\n\xEF\xBB\xBF\xFF\xFE\0"sv);
  if (first == std::string_view::npos || (beginning[first] != '[' && beginning[first] != '{')) return {};
  return fmt::format(
      "is JSON, not text; if each of its lines is an object, rename it to .jsonl, else make a .jsonl file "
      "of it: {}; or rename it to .txt, to take it as it is",
      json_conversion(path));
}

std::string json_conversion(const fs::path& path) {
  return conversion(path,
                    "import json,sys; data=json.load(sys.stdin); [print(json.dumps(one)) for one in (data if "
                    "isinstance(data,list) else [data])]");
}

}  // namespace thinpipe
