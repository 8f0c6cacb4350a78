#include "run/worker/worker_links.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <algorithm>

#include "base/log.h"
#include "base/result.h"
#include "net/addresses.h"
#include "net/grpc_link.h"
#include "net/path_probe.h"
#include "net/tls.h"

namespace thinpipe {
namespace {

constexpr auto kDialPatience = std::chrono::seconds(10);
// Less than PathBook::kPatience: the answer must arrive before the coordinator stops waiting.
constexpr auto kProbePatience = std::chrono::seconds(4);
// The neighbour may be busy for as long as its state takes to download; the end of the epoch ends the wait.
constexpr auto kTunnelPatience = std::chrono::hours(3);

int port_of(const std::string& address) {
  const auto parsed = parse_host_port(address);
  return parsed ? parsed.value().port : 0;
}

control::PathFacts to_message(const PathFacts& facts) {
  control::PathFacts message;
  message.set_round_trip_s(facts.round_trip_s);
  message.set_up_bits_per_s(facts.up_bits_per_s);
  message.set_down_bits_per_s(facts.down_bits_per_s);
  return message;
}

}  // namespace

WorkerLinks::WorkerLinks(WorkerLinksOptions options) : options_(std::move(options)), line_(options_.coordinator) {
  std::vector<std::string> listen;
  std::vector<HostPort> places;
  for (const auto& text : options_.listen) {
    places.push_back(parse_host_port(text).take());
    listen.push_back(to_string(places.back()));
  }
  server_ = LinkServer::start(
                listen, options_.max_payload_bytes,
                [this](const wire::Hello& hello, const Caller& caller) { return let_in(hello, caller); },
                tls_server(options_.coordinator.identity, true), options_.on_refused)
                .take();
  addresses_ = options_.announce;
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].port = server_->ports().at(i);
    for (auto& address : reachable_addresses(places[i])) addresses_.push_back(std::move(address));
  }
  if (options_.lines != nullptr) addresses_.clear();
  own_door_ = to_string(is_wildcard(places.front()) ? HostPort{"127.0.0.1", places.front().port} : places.front());
  prober_ = std::jthread([this](const std::stop_token& stop) { run_probes(stop); });
}

Status WorkerLinks::let_in(const wire::Hello& hello, const Caller& caller) {
  const auto refuse = [&](const std::string& reason) {
    options_.on_refused(fmt::format("{}: {}", caller.address, reason));
    return Error{reason};
  };
  if (hello.run() != options_.run) return refuse("that is a link of another run");
  if (!is_peer_id(hello.peer()) || caller.names != std::vector{peer_name(hello.peer())}) {
    return refuse("the certificate is not of the worker that it says it is");
  }
  std::unique_lock lock(mutex_);
  const bool revoked = revoked_.contains(hello.peer());
  lock.unlock();  // refuse() tells the coordinator, which may take a while
  if (revoked) return refuse(fmt::format("{} was removed from the run", hello.peer()));
  return {};
}

void WorkerLinks::revoke(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  revoked_.insert(peer);
}

void WorkerLinks::pardon(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  revoked_.erase(peer);
}

// ---- the links of an epoch ----

Result<WorkerLinks::Links> WorkerLinks::connect(const control::Form& form, const std::stop_token& stop,
                                                std::optional<Side>& failed_at) {
  dialled_ports_.clear();
  tunnels_.clear();
  Links links;
  const auto connect_next = [&]() -> Status {
    failed_at = Side::kNext;
    links.next = TRY(reach(form.next(), form.seat().stage(), form.epoch(), stop, links.next_path));
    failed_at.reset();
    return {};
  };
  const auto connect_previous = [&]() -> Status {
    failed_at = Side::kPrevious;
    std::optional<control::PathFacts> unused;  // only the lower end of a link measures it
    links.previous = TRY(reach(form.previous(), form.seat().stage() - 1, form.epoch(), stop, unused));
    failed_at.reset();
    return {};
  };
  // Wait for a neighbour last: the other neighbour may be waiting for this worker.
  const auto waits = [](const control::Neighbour& one) { return one.way() == control::Neighbour::AWAIT; };
  const bool next_first = form.has_next() && form.has_previous() && waits(form.previous()) && !waits(form.next());
  if (next_first) TRY(connect_next());
  if (form.has_previous()) TRY(connect_previous());
  if (form.has_next() && !next_first) TRY(connect_next());
  return links;
}

Result<std::unique_ptr<Link>> WorkerLinks::reach(const control::Neighbour& neighbour, int64_t boundary, uint64_t epoch,
                                                 const std::stop_token& stop, std::optional<control::PathFacts>& path) {
  const auto& from = neighbour.peer();
  switch (neighbour.way()) {
    case control::Neighbour::DIAL: {
      const auto to = TRY(target(neighbour.address()));
      auto link = TRY(dial(to.address, neighbour, boundary, epoch, path));
      dialled_ports_.back() = port_of(neighbour.address());  // of the socket that leaves this machine
      return link;
    }
    case control::Neighbour::AWAIT:
      return server_->service().wait_for(boundary, epoch, from, stop);
    case control::Neighbour::TUNNEL_DIAL: {
      auto way = TRY(tunnel(boundary, epoch, true, stop));
      tunnels_.push_back(std::move(way));
      return dial(tunnels_.back()->local_address(), neighbour, boundary, epoch, path);
    }
    case control::Neighbour::TUNNEL_AWAIT: {
      auto way = TRY(tunnel(boundary, epoch, false, stop));
      tunnels_.push_back(std::move(way));
      return server_->service().wait_for(boundary, epoch, from, stop);
    }
    default:
      return Error{"told to reach a neighbour in a way that is not known here"};
  }
}

Result<std::unique_ptr<Tunnel>> WorkerLinks::tunnel(int64_t boundary, uint64_t epoch, bool dials,
                                                    const std::stop_token& stop) {
  const TunnelEndOptions options{.accepts_at = dials ? "" : own_door_, .timeout = kTunnelPatience};
  return Tunnel::open(line_.channel(), tunnel_hello(options_.run, boundary, epoch, dials), options, stop);
}

Result<std::unique_ptr<Link>> WorkerLinks::dial(const std::string& address, const control::Neighbour& neighbour,
                                                int64_t boundary, uint64_t epoch,
                                                std::optional<control::PathFacts>& path) {
  const auto& self = options_.coordinator;
  PathFacts facts;
  auto link = dial_link(address, link_hello(options_.run, self.peer, boundary, epoch), options_.max_payload_bytes,
                        kDialPatience, tls_channel(self.identity), peer_name(neighbour.peer()),
                        neighbour.measure() ? &facts : nullptr);
  if (!link) return Error{fmt::format("{} at {}", neighbour.peer(), link.error().message)};
  if (neighbour.measure()) path = to_message(facts);
  dialled_ports_.push_back(port_of(address));
  return link;
}

uint64_t WorkerLinks::socket_bytes_sent() const {
  auto ports = server_->ports();
  ports.insert(ports.end(), dialled_ports_.begin(), dialled_ports_.end());
  return tcp_bytes_sent(ports);
}

Result<WorkerLinks::Target> WorkerLinks::target(const std::string& address) const {
  if (options_.lines == nullptr) return Target{nullptr, address};
  auto way = TRY(options_.lines->way_to(address));
  auto local = way->address();
  return Target{std::move(way), std::move(local)};
}

// ---- probes ----

void WorkerLinks::probe(const control::Probe& probe, std::function<void(const control::Probed&)> answer) {
  const std::lock_guard lock(mutex_);
  questions_.push_back({probe, std::move(answer)});
  asked_.notify_all();
}

void WorkerLinks::run_probes(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (asked_.wait(lock, stop, [&] { return !questions_.empty(); })) {
    const auto question = std::move(questions_.front());
    questions_.pop_front();
    lock.unlock();
    question.answer(answer_probe(question.probe));
    lock.lock();
  }
}

// Tries all addresses at once, because each unreachable one takes the whole timeout.
control::Probed WorkerLinks::answer_probe(const control::Probe& probe) const {
  constexpr int kMostAddresses = 16;
  control::Probed probed;
  probed.set_incarnation(probe.incarnation());
  if (!is_peer_id(probe.peer())) return probed;
  const auto credentials = tls_channel(options_.coordinator.identity);
  std::vector<std::future<Result<PathFacts>>> attempts;
  const int count = std::min(probe.addresses_size(), kMostAddresses);
  for (int i = 0; i < count; ++i) {
    attempts.push_back(std::async(std::launch::async, [&, i]() -> Result<PathFacts> {
      const auto to = TRY(target(probe.addresses(i)));
      return probe_path(to.address, credentials, peer_name(probe.peer()), kProbePatience);
    }));
  }
  for (int i = 0; i < count; ++i) {
    const auto facts = attempts[static_cast<size_t>(i)].get();
    if (!facts) log_debug("{} is not reached at {}: {}", probe.peer(), probe.addresses(i), facts.error().message);
    if (!facts || !probed.address().empty()) continue;  // keep the first in the announced order
    probed.set_address(probe.addresses(i));
    *probed.mutable_facts() = to_message(facts.value());
  }
  return probed;
}

}  // namespace thinpipe
