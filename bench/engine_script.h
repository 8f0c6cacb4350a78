// The text of bench/engine.py, which is compiled into the program. CMakeLists.txt makes the .cc from the file.
#pragma once

#include <string_view>

namespace thinpipe {

std::string_view engine_script();

}  // namespace thinpipe
