// Prints something again and again on a terminal, for --watch.
#pragma once

#include <functional>

namespace thinpipe {

// Calls `print` every second on a cleared screen until ctrl-C ends the program, or until `print` throws UserError: the
// first time it is passed on; later it is the end of what was watched, and is printed. Throws UserError if standard
// output is no terminal.
void watch(const std::function<void()>& print);

}  // namespace thinpipe
