#include "run/dashboard_child.h"

#include <fmt/format.h>
#include <unistd.h>

#include <thread>

#include "base/files.h"
#include "net/addresses.h"
#include "run/run_files.h"

namespace thinpipe {
namespace {

// The program without libtorch, which the dashboard does not need, if it is beside the full one.
std::filesystem::path small_program(std::filesystem::path program) {
  std::error_code ignored;
  auto small = program.parent_path() / "thinpipe";
  return std::filesystem::exists(small, ignored) ? small : program;
}

}  // namespace

Status check(const DashboardWish& wish) {
  if (wish.listen == "off") return {};
  const auto place = parse_host_port(wish.listen);
  if (place) return {};
  return Error{fmt::format("--dashboard {}: {}; needs off, HOST or HOST:PORT", wish.listen, place.error().message)};
}

DashboardChild::DashboardChild(std::filesystem::path program, std::filesystem::path run_folder,
                               const DashboardWish& wish)
    : program_(small_program(std::move(program))), folder_(std::move(run_folder)), listen_(wish.listen) {
  if (listen_ != "off") start(wish.open);
}

void DashboardChild::start(bool open) {
  const auto logs = folder_ / "logs";
  if (!make_directories(logs)) return;
  std::vector<std::string> arguments{"dashboard", folder_.string(), "--listen", listen_};
  if (open) arguments.emplace_back("--open");
  auto started = ChildProcess::start(program_, arguments, logs / "dashboard.log");
  if (started) process_ = std::move(started).take();
}

std::optional<std::string> DashboardChild::news() {
  if (!process_) return std::nullopt;
  if (const auto end = process_->poll()) {
    process_.reset();
    if (end->signal == 0) return fmt::format("no dashboard: {}", last_words(folder_ / "logs" / "dashboard.log"));
    start(false);
    return std::nullopt;
  }
  if (told_) return std::nullopt;
  const auto place = read_dashboard_place(folder_);
  if (!place || place.value().pid != process_->pid()) return std::nullopt;
  told_ = true;
  return "dashboard: " + place.value().address;
}

}  // namespace thinpipe
