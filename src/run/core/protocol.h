// The version of the protocol between coordinator and workers (proto/control.proto). A change of meaning needs a new
// version.
#pragma once

#include <cstdint>

namespace thinpipe {

constexpr uint32_t kControlProtocol = 5;

}  // namespace thinpipe
