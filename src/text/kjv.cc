#include "text/kjv.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>

#include "base/files.h"

namespace thinpipe {
namespace {

// A fixed command, so that no user input reaches the shell.
constexpr const char* kCommand = "bible -f 'Gen1:1-Rev22:21' </dev/null 2>/dev/null";
constexpr size_t kListingLimit = 64 << 20;
constexpr int kShellNotFound = 127;

std::string run_bible() {
  FILE* pipe = ::popen(kCommand, "r");
  if (pipe == nullptr) throw UserError("data.corpus = \"kjv\": cannot start the program 'bible'");
  std::string listing;
  char buffer[1 << 16];
  size_t count = 0;
  while (listing.size() <= kListingLimit && (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0) {
    listing.append(buffer, count);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kShellNotFound) {
    throw UserError(
        "data.corpus = \"kjv\" needs the program 'bible': install Debian's package bible-kjv, or set data.corpus to "
        "a text file");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw UserError(fmt::format("data.corpus = \"kjv\": the program 'bible' failed (wait status {})", status));
  }
  return listing;
}

// "Ge1" of "Ge1:1 In the beginning"; empty if the line does not start with book, chapter and verse.
std::string_view chapter_of(std::string_view line) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::string_view reference = line.substr(0, std::min(line.find(' '), line.size()));
  const size_t colon = reference.find(':');
  if (colon == std::string_view::npos || colon == 0 || !is_digit(reference[colon - 1])) return {};
  const std::string_view verse = reference.substr(colon + 1);
  if (verse.empty() || !std::all_of(verse.begin(), verse.end(), is_digit)) return {};
  return reference.substr(0, colon);
}

// Expects one line per verse and an empty line after each chapter.
bool looks_complete(std::string_view text) {
  return std::count(text.begin(), text.end(), '\n') == static_cast<ptrdiff_t>(kKjvVerses + kKjvChapters) &&
         text.ends_with("\n\n");
}

}  // namespace

Result<std::string> kjv_text_from_listing(std::string_view listing) {
  std::string text;
  std::string_view chapter;
  size_t verses = 0;
  size_t chapters = 0;
  while (!listing.empty()) {
    const std::string_view line = listing.substr(0, std::min(listing.find('\n'), listing.size()));
    listing.remove_prefix(std::min(line.size() + 1, listing.size()));
    const std::string_view line_chapter = chapter_of(line);
    const size_t space = line.find(' ');
    if (line_chapter.empty() || space == std::string_view::npos) {
      return Error{fmt::format("the listing of 'bible' has a line that is not a verse: '{}'", line.substr(0, 60))};
    }
    if (line_chapter != chapter) {
      if (chapters > 0) text += '\n';
      chapter = line_chapter;
      ++chapters;
    }
    text += line.substr(space + 1);
    text += '\n';
    ++verses;
  }
  if (chapters != kKjvChapters || verses != kKjvVerses) {
    return Error{fmt::format("the listing of 'bible' has {} verses in {} chapters; the whole has {} in {}", verses,
                             chapters, kKjvVerses, kKjvChapters)};
  }
  text += '\n';
  return text;
}

std::filesystem::path kjv_file() {
  const std::filesystem::path folder = data_dir() / "corpora";
  std::filesystem::path path = folder / "kjv.txt";
  if (const auto cached = read_file(path); cached && looks_complete(cached.value())) return path;
  auto text = kjv_text_from_listing(run_bible());
  if (!text) throw UserError("data.corpus = \"kjv\": " + text.error().message);
  make_directories(folder).take();
  write_file_atomically(path, text.value()).take();
  return path;
}

}  // namespace thinpipe
