// The exceptions a person caused: a config key, an argument, a path. The program prints the message as one line and
// exits 2; nothing else catches them.
#pragma once

#include <stdexcept>
#include <string>

namespace thinpipe {

class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace thinpipe
