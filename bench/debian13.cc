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
  const auto folder = data_dir() / "bench/debian13", script = data_dir() / "bench/bare_debian.sh",
             log = data_dir() / "bench/debian13.log";
  if (::geteuid() != 0) {
    throw UserError(
        fmt::format("--torch2: needs root, to make a Debian 13 in {} and to run PyTorch there", folder.string()));
  }
  make_directories(folder.parent_path()).take();
  write_file_atomically(script, std::string(bare_debian_script())).take();
  const auto python = fmt::format("bash '{}' run --offline '{}' /usr/bin/python3", script.string(), folder.string());
  if (std::filesystem::is_directory(folder)) return python;
  if (std::system("command -v debootstrap >/dev/null && command -v ip >/dev/null") != 0) {
    throw UserError("--torch2: needs debootstrap and ip; run: apt-get install debootstrap iproute2");
  }
  fmt::print("making a Debian 13 with its PyTorch in {}, once\n", folder.string());
  std::fflush(stdout);
  // OpenBLAS on OpenMP shares PyTorch's threads, as it does for thinpipe.
  const auto make = fmt::format("bash '{}' make trixie '{}' python3-torch python3-numpy libopenblas0-openmp >'{}' 2>&1",
                                script.string(), folder.string(), log.string());
  if (std::system(make.c_str()) != 0) {
    throw UserError(fmt::format("--torch2: cannot make a Debian 13 in {}; {} says why", folder.string(), log.string()));
  }
  return python;
}

}  // namespace thinpipe
