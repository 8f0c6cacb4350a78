// Files that belong to the program but are not part of it: modules that it loads, the larger program that it hands over
// to.
#pragma once

#include <filesystem>
#include <string>

namespace thinpipe {

// The file of that name in an installed tree, wherever the tree was moved to: in the library folders beside the
// program's bin/ (lib/thinpipe/ or Debian's lib/<architecture>/thinpipe/), or beside a program that lies in such a
// folder itself. Programs inside the build folder find `built` instead, where the build left it. Installed programs do
// not look there, because that path may belong to somebody else by then. Throws UserError if there is none: "there is
// no NAME, WHAT, in ..."
std::filesystem::path program_file(const std::string& name, const std::string& what,
                                   const std::filesystem::path& built);

}  // namespace thinpipe
