// The corpus that needs no download: the King James Bible as Debian's program `bible` (package bible-kjv) prints it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace thinpipe {

inline constexpr size_t kKjvChapters = 1189;
inline constexpr size_t kKjvVerses = 31102;

// Turns the output of `bible -f` ("Ge1:1 In the beginning ...") into text: one verse per line without its reference, an
// empty line after every chapter. An error unless it has all 31102 verses in 1189 chapters.
Result<std::string> kjv_text_from_listing(std::string_view listing);

// The path of that text, data_dir()/corpora/kjv.txt. Creates the file if it is missing or incomplete. Throws UserError
// if the program is missing or prints something else.
std::filesystem::path kjv_file();

}  // namespace thinpipe
