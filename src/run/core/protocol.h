// The version of what coordinator and workers say to each other (proto/control.proto). A change of meaning is a new
// one.
#pragma once

#include <cstdint>

namespace thinpipe {

constexpr uint32_t kControlProtocol = 3;

}  // namespace thinpipe
