// PyTorch 2.6 for `bench engine --torch2`: a Debian 13 in a folder below the data folder, made once by
// packaging/bare_debian.sh.
#pragma once

#include <string>

namespace thinpipe {

// Returns a command for a shell that starts the python there, which sees no files of this machine. Makes the folder
// first if it is missing, which takes minutes. Throws UserError without root or debootstrap, or if it cannot be made.
std::string debian13_python();

}  // namespace thinpipe
