// The files of dashboard/built, compiled into the program.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace thinpipe {

struct PageFile {
  std::string_view bytes;
  const char* type;
};
// The file of a path, such as "/app.js"; "/" is index.html.
std::optional<PageFile> built_page(std::string_view path);

}  // namespace thinpipe
