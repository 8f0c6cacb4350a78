// A worker's links: the door where neighbours knock, the dialling, the tunnels through the coordinator when neither can
// dial the other, and the probes that find out which it is. Everything is mutual TLS; who a neighbour is, its
// certificate says.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "net/link_service.h"
#include "net/tunnel.h"
#include "proto/control.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

struct WorkerLinksOptions {
  std::string run;
  CoordinatorAccess coordinator;
  std::vector<std::string> listen;    // HOST or HOST:PORT, each
  std::vector<std::string> announce;  // HOST:PORT: where neighbours may dial beside those, say a forwarded port
  LinkLimits limits;
  // From any thread: somebody was turned away, and why.
  std::function<void(const std::string&)> on_refused;
};

class WorkerLinks {
 public:
  // Listens. Throws UserError when it cannot.
  explicit WorkerLinks(WorkerLinksOptions options);

  // Where neighbours may dial; what Hello announces.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // The two links of an epoch; null where there is no neighbour. Those of the epoch before must be gone. Ends with an
  // error when stop is requested. On the compute thread.
  struct Links {
    std::unique_ptr<Link> previous, next;
    std::optional<control::PathFacts> next_path;  // when it was to be measured
  };
  Result<Links> connect(const control::Form& form, const std::stop_token& stop);

  // Whether that worker can be reached; the answer comes on a thread of its own.
  void probe(const control::Probe& probe, std::function<void(const control::Probed&)> answer);

  // No stream of that peer is let in any more.
  void revoke(const std::string& peer);

  // Sent on this end's data connections so far, as the kernel counts.
  uint64_t socket_bytes_sent() const;

 private:
  Status let_in(const LinkHello& hello, const LinkCaller& caller);
  Result<std::unique_ptr<Link>> reach(const control::Neighbour& neighbour, int64_t boundary, uint64_t epoch,
                                      const std::stop_token& stop, std::optional<control::PathFacts>& path);
  Result<std::unique_ptr<Tunnel>> tunnel(int64_t boundary, uint64_t epoch, bool dials, const std::stop_token& stop);
  Result<std::unique_ptr<Link>> dial(const std::string& address, const control::Neighbour& neighbour, int64_t boundary,
                                     uint64_t epoch, std::optional<control::PathFacts>& path);
  void run_probes(const std::stop_token& stop);
  control::Probed answer_probe(const control::Probe& probe) const;

  const WorkerLinksOptions options_;
  CoordinatorLine line_;
  std::unique_ptr<LinkServer> server_;
  std::vector<std::string> addresses_;
  std::string own_door_;            // where this process itself reaches its server
  std::vector<int> dialled_ports_;  // of the present epoch; compute thread
  std::vector<std::unique_ptr<Tunnel>> tunnels_;

  mutable std::mutex mutex_;
  std::set<std::string> revoked_;
  struct Question {
    control::Probe probe;
    std::function<void(const control::Probed&)> answer;
  };
  std::deque<Question> questions_;
  std::condition_variable_any asked_;
  std::jthread prober_;  // last: it uses the rest
};

}  // namespace thinpipe
