// A server's door: its listening sockets, and a bound on the connections that it takes. gRPC has no such bound, so this
// process accepts connections itself and hands them over. A connection is a stranger's until a call on it has shown a
// member's certificate. Strangers have few places and little time, and make room for newer ones; members keep theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "net/addresses.h"

namespace thinpipe {

struct DoorLimits {
  size_t connections = 0;  // in all
  size_t strangers = 96;   // in all
  size_t of_network = 20;  // strangers of one caller_network()
  size_t of_member = 16;   // further connections of a member count as a stranger's
  double per_second = 60;  // new connections of one network, after a burst
  double burst = 256;
  Duration stranger_life = std::chrono::minutes(2);
};
// With as many connections as this process's limit on descriptors allows, less what its own files may need.
DoorLimits door_limits();

// Decides who may stay. Knows only the time that it is given. One thread at a time.
class DoorBook {
 public:
  // Names a connection; the caller chooses it.
  using Id = int;

  explicit DoorBook(const DoorLimits& limits) : limits_(limits) {}

  struct Decision {
    bool admit = false;
    std::vector<Id> close;  // strangers that make room
  };
  // address: as gRPC writes it, or HOST:PORT.
  Decision arrive(Id id, const std::string& address, TimePoint now);
  void left(Id id) { callers_.erase(id); }
  // A call from there has shown this member's certificate.
  void prove(const std::string& address, const std::string& member);
  // Strangers whose time is over.
  std::vector<Id> overdue(TimePoint now) const;
  std::vector<Id> all() const;

 private:
  struct Caller {
    std::string network, place;  // place: network and port
    std::string member;          // empty: a stranger
    TimePoint since{};
  };
  struct Bucket {
    double tokens = 0;
    TimePoint at{};
  };

  bool within_rate(const std::string& network, TimePoint now);
  // The oldest stranger of the network; of the network that has most of them if it is empty.
  Id oldest_stranger(std::string network) const;
  size_t strangers_of(const std::string& network) const;

  const DoorLimits limits_;
  std::map<Id, Caller> callers_;
  std::map<std::string, Bucket> rates_;  // by network
};

// Listens, and gives accepted sockets to a server. Its thread is the only one in the process that accepts sockets.
class Door {
 public:
  // Throws UserError if it cannot listen at one of the places. Fills in their ports.
  Door(std::vector<HostPort>& places, const DoorLimits& limits);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Starts to accept. `take` owns the descriptor that it is given: it closes it.
  void open(std::function<void(int listener, int descriptor)> take);
  // Accepts no more. Connections that were handed over stay.
  void close();
  // From any thread.
  void prove(const std::string& address, const std::string& member);

 private:
  void run();
  void accept_from(int listener);
  // Forgets connections that the server has closed, and ends those of strangers whose time is over.
  void sweep();
  void end(DoorBook::Id id);

  std::vector<int> listeners_;
  int wake_ = -1;  // an eventfd that ends the thread
  std::function<void(int, int)> take_;
  const SystemClock clock_;

  std::mutex mutex_;
  DoorBook book_;
  std::map<DoorBook::Id, uint64_t> inodes_;  // by descriptor: tells a connection from a later use of its number
  std::thread thread_;
};

}  // namespace thinpipe
