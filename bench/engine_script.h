// The texts of bench/engine.py and packaging/bare_debian.sh, which are compiled into the program. CMakeLists.txt makes
// the .cc from the files.
#pragma once

#include <string_view>

namespace thinpipe {

std::string_view engine_script();
std::string_view bare_debian_script();

}  // namespace thinpipe
