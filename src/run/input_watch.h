// A worker that another program has started holds on to its standard input: when that ends, or nothing comes for too
// long, nobody is left who could end the worker. It works across ssh, which closes the input when the connection ends.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/files.h"

namespace thinpipe {

// The program on the other side sends a line this often.
inline constexpr Duration kInputBeat = std::chrono::seconds(5);
// A connection that has hung for so long counts as lost.
inline constexpr Duration kInputSilence = std::chrono::seconds(60);

class InputWatch {
 public:
  // Reads the descriptor in a thread of its own and throws away what comes. Calls `on_end` in that thread, at most
  // once, with the reason.
  InputWatch(int descriptor, Duration most_silence, std::function<void(const std::string&)> on_end);
  ~InputWatch();
  InputWatch(const InputWatch&) = delete;
  InputWatch& operator=(const InputWatch&) = delete;

 private:
  void watch();

  const int descriptor_;
  const Duration most_silence_;
  const std::function<void(const std::string&)> on_end_;
  const Fd wake_;
  std::thread thread_;
};

}  // namespace thinpipe
