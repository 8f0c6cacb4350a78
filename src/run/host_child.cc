#include "run/host_child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/client_context.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/files.h"
#include "net/addresses.h"
#include "net/invite.h"
#include "run/coordinator_line.h"
#include "run/run_files.h"

namespace thinpipe {
namespace {

constexpr auto kInvitePatience = std::chrono::seconds(30);
constexpr int64_t kInviteLife_s = 24 * 3600;
constexpr int kMostHostRestarts = 10;

// An invite that lets one machine in, by the address for this machine.
Result<std::string> own_invite(const std::filesystem::path& run_folder) {
  const auto place = TRY(read_coordinator_place(run_folder));
  CoordinatorLine line(operator_access(run_folder, place.address));
  control::InviteRequest request;
  request.set_what(control::InviteRequest::CREATE);
  request.set_uses(1);
  request.set_lifetime_s(kInviteLife_s);
  request.set_note("serve --join");
  control::InviteReply reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kInvitePatience);
  const auto status = line.stub()->Invite(&context, request, &reply);
  if (!status.ok()) return Error{status.error_message()};
  auto invite = TRY(parse_invite(reply.text()));
  invite.addresses = {place.address};
  return to_text(invite);
}

}  // namespace

Result<HostChild> HostChild::start(std::filesystem::path program, const std::filesystem::path& run_folder,
                                   const std::vector<std::string>& listen) {
  // --wait 0: when the coordinator stops, this machine stops too.
  std::vector<std::string> arguments{"join", "-", "--wait", "0"};
  for (const auto& text : listen) {
    const auto place = TRY(parse_host_port(text));
    arguments.insert(arguments.end(), {"--listen", place.host});  // the port is the coordinator's
  }
  HostChild child(std::move(program), run_folder, std::move(arguments));
  TRY(make_directories(child.folder()));
  TRY(make_directories(child.log().parent_path()));
  const auto text = TRY(own_invite(run_folder));
  TRY(write_file_atomically(child.folder() / "invite", text + "\n", FileMode::kPrivate));
  TRY(child.begin());
  return child;
}

Status HostChild::begin() {
  const auto invite = folder() / "invite";
  const Fd input(::open(invite.c_str(), O_RDONLY | O_CLOEXEC));
  if (!input) return Error{fmt::format("cannot read {}: {}", invite.string(), std::strerror(errno))};
  const ChildSetting setting{.input = input.get(), .variable = "THINPIPE_DATA_DIR=" + folder().string()};
  process_ = TRY(ChildProcess::start(program_, arguments_, log(), setting));
  return {};
}

std::optional<std::string> HostChild::news() {
  const auto end = process_ ? process_->poll() : std::nullopt;
  if (!end) return std::nullopt;
  process_.reset();
  if (end->exit_code == 0) return std::nullopt;
  const auto holds_none = [&](const std::string& why) {
    return fmt::format("this machine holds no stage any more: {}; see {}", why, log().string());
  };
  if (end->signal == 0) {
    const auto reason = last_words(log());
    return holds_none(reason.empty() ? fmt::format("exit code {}", end->exit_code) : reason);
  }
  const auto by = fmt::format("signal {} ({})", end->signal, ::strsignal(end->signal));
  if (++restarts_ > kMostHostRestarts) return holds_none(fmt::format("{} ended it {} times", by, restarts_));
  if (const auto status = begin(); !status) return holds_none(status.error().message);
  return fmt::format("this machine's stage was ended by {}; starting it again", by);
}

}  // namespace thinpipe
