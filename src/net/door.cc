#include "net/door.h"

#include <fmt/format.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

namespace thinpipe {
namespace {

// Descriptors for the run's own files, and for what libraries open.
constexpr size_t kOwnDescriptors = 192;
constexpr size_t kMostConnections = 4096, kLeastConnections = 16;
constexpr size_t kMostRates = 4096;
constexpr int kBacklog = 1024;
constexpr int kSweepMs = 500, kNoDescriptorsMs = 50;

std::string port_of(const std::string& address) {
  const auto colon = address.rfind(':');
  return colon == std::string::npos ? "" : address.substr(colon + 1);
}

// The inode of a socket is unique while it is open. 0: not an open socket.
uint64_t inode_of(int descriptor) {
  struct stat about {};
  return ::fstat(descriptor, &about) == 0 && S_ISSOCK(about.st_mode) ? about.st_ino : 0;
}

// HOST:PORT of the other end; empty if it is gone.
std::string other_end(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  if (::getnameinfo(plain, size, host.data(), host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV)) {
    return "";
  }
  return to_string({host.data(), std::atoi(port.data())});
}

int port_of_socket(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return address.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port)
                                       : ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// A listening socket; -1 and errno on failure.
int listen_at(const addrinfo& where) {
  const int socket = ::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  const int on = 1, off = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (where.ai_family == AF_INET6) ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket, where.ai_addr, where.ai_addrlen) == 0 && ::listen(socket, kBacklog) == 0) return socket;
  const int fault = errno;
  ::close(socket);
  errno = fault;
  return -1;
}

std::string why_not_listening(int fault, const HostPort& place) {
  if (fault == EADDRINUSE) {
    return fmt::format("port {} is in use by another program; stop that one, or choose another port with --listen",
                       place.port);
  }
  if (fault == EADDRNOTAVAIL) return fmt::format("{} is not an address of this machine", place.host);
  if (fault == EACCES) return fmt::format("this user may not listen on port {}; take one above 1023", place.port);
  return std::strerror(fault);
}

// Listens at every address of the place and fills in its port.
Result<std::vector<int>> listen_at(HostPort& place) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  std::vector<int> sockets;
  int fault = 0;
  addrinfo* found = nullptr;
  if (::getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found) != 0) {
    return Error{fmt::format("{} is neither an address nor a host name that this machine knows", place.host)};
  }
  for (const auto* one = found; one != nullptr; one = one->ai_next) {
    // A name with several addresses has the same port everywhere.
    if (!sockets.empty() && one->ai_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(one->ai_addr)->sin6_port = htons(static_cast<uint16_t>(place.port));
    } else if (!sockets.empty() && one->ai_family == AF_INET) {
      reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_port = htons(static_cast<uint16_t>(place.port));
    }
    const int socket = listen_at(*one);
    if (socket < 0) {
      fault = errno;
      continue;
    }
    place.port = port_of_socket(socket);
    sockets.push_back(socket);
  }
  ::freeaddrinfo(found);
  if (sockets.empty()) return Error{why_not_listening(fault, place)};
  return sockets;
}

}  // namespace

DoorLimits door_limits() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const size_t descriptors = limit.rlim_cur == RLIM_INFINITY ? kMostConnections * 2 : limit.rlim_cur;
  DoorLimits limits;
  const size_t left = descriptors > kOwnDescriptors ? descriptors - kOwnDescriptors : 0;
  limits.connections = std::clamp(left, kLeastConnections, kMostConnections);
  limits.strangers = std::min(limits.strangers, limits.connections / 2);
  return limits;
}

// ---- who may stay ----

bool DoorBook::within_rate(const std::string& network, TimePoint now) {
  if (rates_.size() >= kMostRates && !rates_.contains(network)) {
    std::erase_if(rates_, [&](const auto& one) { return now - one.second.at > std::chrono::minutes(1); });
    if (rates_.size() >= kMostRates) rates_.clear();
  }
  auto [found, is_new] = rates_.try_emplace(network, Bucket{limits_.burst, now});
  auto& bucket = found->second;
  bucket.tokens = std::min(limits_.burst, bucket.tokens + limits_.per_second * seconds(now - bucket.at));
  bucket.at = now;
  if (bucket.tokens < 1) return false;
  bucket.tokens -= 1;
  return true;
}

size_t DoorBook::strangers_of(const std::string& network) const {
  return static_cast<size_t>(std::count_if(callers_.begin(), callers_.end(), [&](const auto& one) {
    return one.second.member.empty() && (network.empty() || one.second.network == network);
  }));
}

DoorBook::Id DoorBook::oldest_stranger(std::string network) const {
  if (network.empty()) {
    std::map<std::string, size_t> counts;
    for (const auto& [id, caller] : callers_) counts[caller.network] += caller.member.empty() ? 1 : 0;
    const auto most = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    network = most->first;
  }
  std::optional<std::pair<TimePoint, Id>> oldest;
  for (const auto& [id, caller] : callers_) {
    if (!caller.member.empty() || caller.network != network) continue;
    if (!oldest || caller.since < oldest->first) oldest = {caller.since, id};
  }
  return oldest->second;
}

DoorBook::Decision DoorBook::arrive(Id id, const std::string& address, TimePoint now) {
  const auto network = caller_network(address);
  Decision decision;
  if (!within_rate(network, now)) return decision;
  const auto make_room = [&](const std::string& of) {
    decision.close.push_back(oldest_stranger(of));
    callers_.erase(decision.close.back());
  };
  if (strangers_of(network) >= limits_.of_network) make_room(network);
  if (const size_t strangers = strangers_of("");
      strangers >= limits_.strangers || (callers_.size() >= limits_.connections && strangers > 0)) {
    make_room("");
  }
  if (callers_.size() >= limits_.connections) return decision;  // all of them members'
  decision.admit = true;
  callers_[id] = {network, network + " " + port_of(address), "", now};
  return decision;
}

void DoorBook::prove(const std::string& address, const std::string& member) {
  const auto place = caller_network(address) + " " + port_of(address);
  size_t count = 0;
  Caller* found = nullptr;
  for (auto& [id, caller] : callers_) {
    if (caller.place == place) found = &caller;
    if (caller.member == member) ++count;
  }
  if (found != nullptr && found->member.empty() && count < limits_.of_member) found->member = member;
}

std::vector<DoorBook::Id> DoorBook::overdue(TimePoint now) const {
  std::vector<Id> found;
  for (const auto& [id, caller] : callers_) {
    if (caller.member.empty() && now - caller.since > limits_.stranger_life) found.push_back(id);
  }
  return found;
}

std::vector<DoorBook::Id> DoorBook::all() const {
  std::vector<Id> ids;
  for (const auto& [id, caller] : callers_) ids.push_back(id);
  return ids;
}

// ---- sockets ----

Door::Door(std::vector<HostPort>& places, const DoorLimits& limits) : book_(limits) {
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (auto& place : places) {
    const auto sockets = listen_at(place);
    if (sockets) {
      listeners_.insert(listeners_.end(), sockets.value().begin(), sockets.value().end());
      continue;
    }
    for (const int one : listeners_) ::close(one);
    ::close(wake_);
    throw UserError(fmt::format("cannot listen on {}: {}", place.port == 0 ? place.host : to_string(place),
                                sockets.error().message));
  }
}

Door::~Door() {
  close();
  for (const int one : listeners_) ::close(one);
  ::close(wake_);
}

void Door::open(std::function<void(int, int)> take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { run(); });
}

void Door::close() {
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void Door::prove(const std::string& address, const std::string& member) {
  const std::lock_guard lock(mutex_);
  book_.prove(address, member);
}

void Door::run() {
  std::vector<pollfd> waits{{wake_, POLLIN, 0}};
  for (const int one : listeners_) waits.push_back({one, POLLIN, 0});
  auto swept = clock_.now();
  while (true) {
    ::poll(waits.data(), waits.size(), kSweepMs);
    if (waits[0].revents != 0) return;
    for (size_t i = 1; i < waits.size(); ++i) {
      if (waits[i].revents != 0) accept_from(waits[i].fd);
    }
    if (clock_.now() - swept < std::chrono::milliseconds(kSweepMs)) continue;
    sweep();
    swept = clock_.now();
  }
}

void Door::accept_from(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const int socket = ::accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) {
    // Without descriptors the caller stays in the queue: asking again at once would only cost time.
    pollfd wake{wake_, POLLIN, 0};
    if (errno == EMFILE || errno == ENFILE) ::poll(&wake, 1, kNoDescriptorsMs);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (inodes_.contains(socket)) {  // the kernel has reused the number of a connection that the server has closed
    inodes_.erase(socket);
    book_.left(socket);
  }
  const auto decision = book_.arrive(socket, other_end(address, size), clock_.now());
  for (const int one : decision.close) end(one);
  if (!decision.admit) {
    ::close(socket);
    return;
  }
  inodes_[socket] = inode_of(socket);
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  take_(listener, socket);
}

// Ends the connection; the server notices and closes the descriptor. If the server has closed it in the meantime, the
// number may belong to a file by now, where this does nothing. It belongs to no other connection: only this thread
// accepts any.
void Door::end(DoorBook::Id id) {
  const auto found = inodes_.find(id);
  if (found == inodes_.end()) return;
  if (inode_of(id) == found->second) ::shutdown(id, SHUT_RDWR);
  inodes_.erase(found);
}

void Door::sweep() {
  const std::lock_guard lock(mutex_);
  for (const auto id : book_.all()) {
    if (inode_of(id) == inodes_.at(id)) continue;
    book_.left(id);
    inodes_.erase(id);
  }
  for (const auto id : book_.overdue(clock_.now())) {
    book_.left(id);
    end(id);
  }
}

}  // namespace thinpipe
