#include "run/lingering.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace thinpipe {
namespace {

// What a person types as the user's name; the number, if it has no plain name.
std::string name_of_user() {
  const auto* entry = ::getpwuid(::getuid());
  const std::string name = entry == nullptr ? "" : entry->pw_name;
  const bool plain = !name.empty() && name.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_.-") == std::string::npos;
  return plain ? name : fmt::format("{}", ::getuid());
}

// Its first bytes on standard output and standard error; nothing if there is no such program. The words are ours.
std::optional<std::string> printed_by(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "re");
  if (pipe == nullptr) return std::nullopt;
  std::array<char, 4096> text{};
  const size_t count = std::fread(text.data(), 1, text.size(), pipe);
  for (std::array<char, 4096> rest{}; std::fread(rest.data(), 1, rest.size(), pipe) > 0;) {
  }
  const int end = ::pclose(pipe);
  constexpr int kNoSuchProgram = 127;
  if (WIFEXITED(end) && WEXITSTATUS(end) == kNoSuchProgram) return std::nullopt;
  return std::string(text.data(), count);
}

}  // namespace

Lingering lingering_in(const std::optional<std::string>& printed) {
  if (!printed) return Lingering::kUnknown;
  if (printed->find("Linger=yes") != std::string::npos) return Lingering::kOn;
  if (printed->find("Linger=no") != std::string::npos) return Lingering::kOff;
  // loginctl knows only users who are logged in or linger.
  return printed->find("not logged in or lingering") != std::string::npos ? Lingering::kOff : Lingering::kUnknown;
}

Lingering lingering_of_this_user() {
  return lingering_in(printed_by(fmt::format("LC_ALL=C loginctl show-user {} --property=Linger", ::getuid())));
}

bool enable_lingering() {
  return std::system(fmt::format("loginctl enable-linger {}", ::getuid()).c_str()) == 0 &&
         lingering_of_this_user() == Lingering::kOn;
}

std::string command_for_lingering() { return "loginctl enable-linger " + name_of_user(); }

std::string describe(Lingering lingering) {
  switch (lingering) {
    case Lingering::kOn:
      return "it runs from the machine's start on, whether you are logged in or not";
    case Lingering::kOff:
      return "it runs only while you are logged in; to let it run from the machine's start on: " +
             command_for_lingering();
    case Lingering::kUnknown:
      break;
  }
  return "loginctl does not say whether it runs while you are not logged in; to make sure that it does: " +
         command_for_lingering();
}

}  // namespace thinpipe
