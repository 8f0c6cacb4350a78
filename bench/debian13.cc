#include "bench/debian13.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/files.h"
#include "base/result.h"
#include "bench/engine_script.h"

namespace thinpipe {

std::string debian13_python() {
  const auto folder = data_dir() / "bench/debian13", script = data_dir() / "bench/debian13.sh",
             log = data_dir() / "bench/debian13.log";
  if (::geteuid() != 0) {
    throw UserError(
        fmt::format("--torch2: needs root, to make a Debian 13 in {} and to run PyTorch there", folder.string()));
  }
  make_directories(folder.parent_path()).take();
  write_file_atomically(script, std::string(debian13_script())).take();
  const auto call = [&](const char* what) {
    return fmt::format("bash '{}' {} '{}'", script.string(), what, folder.string());
  };
  if (std::filesystem::is_directory(folder)) return call("run");
  if (std::system("command -v debootstrap >/dev/null") != 0) {
    throw UserError("--torch2: needs debootstrap; run: apt-get install debootstrap");
  }
  fmt::print("making a Debian 13 with its PyTorch in {}, once\n", folder.string());
  std::fflush(stdout);
  if (std::system(fmt::format("{} >'{}' 2>&1", call("make"), log.string()).c_str()) != 0) {
    throw UserError(fmt::format("--torch2: cannot make a Debian 13 in {}; {} says why", folder.string(), log.string()));
  }
  return call("run");
}

}  // namespace thinpipe
