// A worker's links: the server that neighbours dial, the dialling, the tunnels through the coordinator for neighbours
// that cannot dial each other, and the probes that find out who can. All use mutual TLS; a certificate names each
// neighbour.
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

#include "net/capped_lines.h"
#include "net/link_service.h"
#include "net/tunnel.h"
#include "proto/control.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

struct WorkerLinksOptions {
  std::string run;
  CoordinatorAccess coordinator;
  std::vector<std::string> listen;    // HOST or HOST:PORT each
  std::vector<std::string> announce;  // more HOST:PORT where neighbours may dial, for example a forwarded port
  size_t max_payload_bytes = 0;       // of any packet
  // Gets the reason when somebody was refused. Called on any thread.
  std::function<void(const std::string&)> on_refused;
  // If not null, neighbours are dialled through it and cannot dial this worker: what they would send is not capped.
  CappedLines* lines = nullptr;
};

class WorkerLinks {
 public:
  // Starts listening. Throws UserError if it cannot.
  explicit WorkerLinks(WorkerLinksOptions options);

  // Where neighbours may dial; what Hello announces.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // The two links of an epoch; null if there is no neighbour. The links of the previous epoch must be gone. Returns an
  // error if stop is requested. Call it on the compute thread.
  struct Links {
    std::unique_ptr<Link> previous, next;
    std::optional<control::PathFacts> next_path;  // if the Form asked to measure it
  };
  enum class Side { kPrevious, kNext };
  // failed_at: after an error, the link that could not be made.
  Result<Links> connect(const control::Form& form, const std::stop_token& stop, std::optional<Side>& failed_at);

  // Finds out whether that worker can be reached; calls `answer` on another thread.
  void probe(const control::Probe& probe, std::function<void(const control::Probed&)> answer);

  // Admits no more streams of that peer.
  void revoke(const std::string& peer);
  // A member again.
  void pardon(const std::string& peer);

  // Bytes sent so far on this end's data connections, as the kernel counts.
  uint64_t socket_bytes_sent() const;

 private:
  Status let_in(const wire::Hello& hello, const Caller& caller);
  Result<std::unique_ptr<Link>> reach(const control::Neighbour& neighbour, int64_t boundary, uint64_t epoch,
                                      const std::stop_token& stop, std::optional<control::PathFacts>& path);
  Result<std::unique_ptr<Tunnel>> tunnel(int64_t boundary, uint64_t epoch, bool dials, const std::stop_token& stop);
  Result<std::unique_ptr<Link>> dial(const std::string& address, const control::Neighbour& neighbour, int64_t boundary,
                                     uint64_t epoch, std::optional<control::PathFacts>& path);
  void run_probes(const std::stop_token& stop);
  control::Probed answer_probe(const control::Probe& probe) const;
  // Through the capped lines, if there are any. Keep it while it is being dialled.
  struct Target {
    std::unique_ptr<CappedLines::Way> way;
    std::string address;
  };
  Result<Target> target(const std::string& address) const;

  const WorkerLinksOptions options_;
  CoordinatorLine line_;
  std::unique_ptr<LinkServer> server_;
  std::vector<std::string> addresses_;
  std::string own_door_;            // where this process reaches its own server
  std::vector<int> dialled_ports_;  // of the current epoch; compute thread only
  std::vector<std::unique_ptr<Tunnel>> tunnels_;

  mutable std::mutex mutex_;
  std::set<std::string> revoked_;
  struct Question {
    control::Probe probe;
    std::function<void(const control::Probed&)> answer;
  };
  std::deque<Question> questions_;
  std::condition_variable_any asked_;
  std::jthread prober_;  // last, because it uses the rest
};

}  // namespace thinpipe
