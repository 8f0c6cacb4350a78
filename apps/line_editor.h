// Lines that a person types at a prompt. On a terminal the arrow keys edit the line and bring back earlier ones.
#pragma once

#include <optional>
#include <string>

namespace thinpipe {

class LineEditor {
 public:
  LineEditor();
  // The next line without its end; none at the end of the input.
  std::optional<std::string> read(const std::string& prompt);

 private:
  bool terminal_;  // on both sides
};

}  // namespace thinpipe
