#include "run/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "base/line.h"

namespace thinpipe {
namespace {

constexpr int64_t kMostHosts = 1024;
constexpr int64_t kMostSlots = 256;
constexpr size_t kMaxNameBytes = 255;
constexpr size_t kShownBytes = 60;

// A name goes to ssh as an argument, and ssh may put it into a command of its config.
Status check_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-@:%[]+").find(c) != std::string_view::npos;
  };
  if (!name.empty() && name.size() <= kMaxNameBytes && name.front() != '-' &&
      std::all_of(name.begin(), name.end(), plain)) {
    return {};
  }
  return Error{fmt::format("{} is not a host; needs a name as for ssh: box, user@box", in_quotes(name, kShownBytes))};
}

// Cuts the first word off; an empty one at the end.
std::string_view next_word(std::string_view& line) {
  constexpr std::string_view kBlank = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
  const auto word = line.substr(0, line.find_first_of(kBlank));
  line.remove_prefix(word.size());
  return word;
}

Result<Host> parse_line(std::string_view line) {
  const auto name = next_word(line);
  TRY(check_name(name));
  Host host{std::string(name)};
  const auto slots = next_word(line), rest = next_word(line);
  if (slots.empty()) return host;
  constexpr std::string_view kKey = "slots=";
  if (!slots.starts_with(kKey) || !rest.empty()) {
    return Error{fmt::format("{} after the host; needs HOST or HOST slots=N",
                             in_quotes(rest.empty() || !slots.starts_with(kKey) ? slots : rest, kShownBytes))};
  }
  const auto digits = slots.substr(kKey.size());
  const auto [stopped, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), host.slots);
  if (fault != std::errc{} || stopped != digits.data() + digits.size() || host.slots < 1 || host.slots > kMostSlots) {
    return Error{fmt::format("slots={}: needs a number from 1 to {}", escaped(digits, kShownBytes), kMostSlots)};
  }
  return host;
}

}  // namespace

Result<std::vector<Host>> parse_hostfile(std::string_view text, const std::string& file) {
  std::vector<Host> hosts;
  std::map<std::string, int64_t> lines;  // where each host stands
  for (int64_t number = 1; !text.empty(); ++number) {
    auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto host = parse_line(line);
    if (!host) return Error{fmt::format("{}:{}: {}", file, number, host.error().message)};
    const auto [known, is_new] = lines.emplace(host.value().name, number);
    if (!is_new) {
      return Error{fmt::format("{}:{}: {} is in line {} already; give it slots=N there", file, number,
                               host.value().name, known->second)};
    }
    hosts.push_back(std::move(host).take());
    if (std::ssize(hosts) > kMostHosts) return Error{fmt::format("{}: more than {} hosts", file, kMostHosts)};
  }
  if (hosts.empty()) return Error{fmt::format("{}: names no host; needs a line HOST or HOST slots=N for each", file)};
  return hosts;
}

Result<std::vector<Host>> named_hosts(const std::vector<std::string>& names) {
  std::vector<Host> hosts;
  for (const auto& name : names) {
    if (const auto fine = check_name(name); !fine) return Error{"--host: " + fine.error().message};
    const auto known = std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) { return host.name == name; });
    if (known == hosts.end()) {
      hosts.push_back({name});
    } else {
      ++known->slots;
    }
  }
  return hosts;
}

int64_t slots_of(const std::vector<Host>& hosts) {
  int64_t slots = 0;
  for (const auto& host : hosts) slots += host.slots;
  return slots;
}

std::string to_string(const std::vector<Host>& hosts) {
  std::string text;
  for (const auto& host : hosts) {
    text += (text.empty() ? "" : ", ") + host.name;
    if (host.slots > 1) text += fmt::format(" ({})", host.slots);
  }
  return text;
}

}  // namespace thinpipe
