// The text of modeling_thinpipe.py, which is compiled into the program and written into folders of models with token
// tables. CMakeLists.txt makes the .cc from the file.
#pragma once

#include <string_view>

namespace thinpipe {

std::string_view modeling_thinpipe_py();

}  // namespace thinpipe
