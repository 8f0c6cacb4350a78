// Which thinpipe this is, for people who compare two machines.
#pragma once

#include <string>

namespace thinpipe {

// "0.5.0"; the same text means the same sources, as far as a version can say.
std::string build_name();

}  // namespace thinpipe
