#include "cluster/build_name.h"

namespace thinpipe {

std::string build_name() { return THINPIPE_VERSION; }

}  // namespace thinpipe
