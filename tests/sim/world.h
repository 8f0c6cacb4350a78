// A whole run in one thread: coordinators, workers, the network between them, what goes wrong, and what must hold all
// the same. World::play() throws a Violation if something does not.
//
//   worker -> Connection -> SimCoordinator -> RunDesk, CoordinatorCore, RunStore, CheckpointStore, Admission (all real)
//   SimWorker -> WorkerCore (real)
//
// After every event: no step is applied that was not committed; committed steps are not lost while a copy of every
// stage can be reached; whoever computes has the states that the committed steps give; a commit is on the disk before
// it is sent; only the holder of a unit changes it; no member ends the run. After the faults: the run comes to its end,
// and its result is that of an undisturbed run.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "coordinator.h"
#include "faults.h"
#include "net/certificates.h"
#include "sqlite_disk.h"
#include "virtual_time.h"
#include "worker.h"

namespace thinpipe::sim {

// A worker's line to a coordinator. Like a TCP connection it keeps the order and loses only its end.
struct Connection {
  SimWorker* worker;
  int worker_life;
  SimCoordinator* coordinator;
  int coordinator_life;
  SessionId session = 0;
  bool broken = false;   // nothing arrives any more
  bool closing = false;  // the coordinator has hung up
  TimePoint opened{};
  bool said_hello = false;
  TimePoint last_up{}, last_down{};
};

// What is the same for all simulations, and slow to make.
struct Stage {
  Stage();
  std::filesystem::path folder;  // empty, removed at the end
  std::string run;
  CertificateAuthority authority;
  std::vector<std::string> keys;  // certificate requests
  ~Stage();
};

class World {
 public:
  // kept: which items of the plan happen; empty: all.
  World(const Stage& stage, uint64_t seed, const std::vector<bool>& kept, bool traces);
  // Nothing goes wrong but this.
  World(const Stage& stage, const DiskFault& fault);
  ~World();
  void play();
  uint64_t events_happened() const { return events_.happened(); }
  // How many operations changed the disk.
  uint64_t disk_operations(bool sqlite) const { return sqlite ? sqlite_.writes() : file_operations_; }
  static bool is_open_seed(uint64_t seed) { return seed % 8 != 7; }

  // ---- for the processes ----

  Events& events() { return events_; }
  TimePoint now() const { return events_.now(); }
  WallTime wall_now() const;
  Dice& dice() { return dice_; }
  SqliteDisk& sqlite() { return sqlite_; }
  DiskSwitch& disk_switch() { return switch_; }
  int new_process() { return ++processes_; }
  const RunConfig& config() const { return config_; }
  const std::string& run() const { return stage_.run; }
  const std::string& corpus() const { return corpus_; }
  const std::string& config_sha256() const { return config_sha256_; }
  const CertificateAuthority& authority() const { return stage_.authority; }
  bool is_open() const { return open_; }
  int disk_fault() const { return disk_fault_; }
  Duration delay();
  Duration compute_time();
  template <class... Args>
  void trace(fmt::format_string<Args...> format, Args&&... args) const {
    if (traces_)
      fmt::print("{:9.3f}  {}\n", seconds(now().time_since_epoch()), fmt::format(format, std::forward<Args>(args)...));
  }

  // ---- the network ----

  std::shared_ptr<Connection> connect(SimWorker& worker);
  void to_coordinator(const std::shared_ptr<Connection>& line, const control::FromWorker& message);
  void to_worker(const std::shared_ptr<Connection>& line, const control::ToWorker& message);
  // Both ends notice soon; silently: much later.
  void break_line(const std::shared_ptr<Connection>& line, bool silently);
  // The coordinator hangs up, after what it has sent.
  void close_line(const std::shared_ptr<Connection>& line);
  // The coordinator at the other end, if a call can be made now.
  SimCoordinator* coordinator_at(const std::shared_ptr<Connection>& line);
  Result<std::string> fetch(SimWorker& worker, const control::StateFile& file);
  bool reaches(const std::string& from, const std::string& to) const;
  bool are_linked(const SimWorker& one, const std::string& other, const SimWorker::At& at) const;
  int life_of(const std::string& peer) const;
  int number_of(const std::string& peer) const;
  std::string other_peer(const std::string& peer);
  void to_neighbour(const SimWorker& from, const std::string& to, SimWorker::At at, const PacketTag& tag,
                    uint64_t payload);

  // ---- what must hold ----

  // That worker has had a seat of that stage: it may be believed that it has the state.
  void note_seat(const std::string& peer, int64_t stage);
  // The states with which the stages of that epoch work on that step.
  void expect(SimWorker::At at, int64_t step, const History& history);
  const UnitStates* expected(SimWorker::At at, int64_t step) const;
  void note_commit(const control::Commit& commit, const History& history);
  void check_commit(const control::Commit& commit, const std::string& peer) const;
  void check_rollback(const SimCoordinator& coordinator, int64_t from, int64_t to) const;
  // What a liar with good information would claim: the state of a vacant stage, or else of any.
  std::optional<control::Holding> claim_of(const SimWorker& liar);
  bool can_claim_vacant(const SimWorker& liar);

 private:
  void happen(const PlannedFault& fault);
  void arm(const DiskFault& fault);
  void happen_to_worker(const PlannedFault& fault, SimWorker& worker);
  void happen_to_coordinator(const PlannedFault& fault, SimCoordinator& coordinator);
  void storm(SimCoordinator& coordinator, TimePoint end, uint64_t networks);
  void happen_by_owner(const PlannedFault& fault, SimWorker& worker);
  void happen_to_copies(const PlannedFault& fault, SimWorker& worker);
  void keep_serving();
  void keep_ticking(SimCoordinator& coordinator);
  void calm_down();
  void calm();
  void check_result() const;
  void enrol_worker();
  // An invited machine asks for a certificate. nullopt: it does not get one.
  std::optional<std::string> enrol(const std::string& name, const std::string& key);
  SimWorker* worker_named(const std::string& peer) const;
  // A stage that the liar never held: its last holder is believed.
  std::optional<int64_t> stage_to_claim(const SimWorker& liar, bool vacant);
  // A worker that has no state to claim; `preferred` if it is one.
  SimWorker& outsider(SimWorker& preferred);
  SimWorker& any_worker(uint64_t number) { return *workers_[number % workers_.size()]; }
  bool is_cut_off(const SimWorker& worker, const SimCoordinator& coordinator) const;
  // Whether the worker has the state of that stage, and nothing has kept it from saying so for longer than a lease.
  bool has_copy(const SimWorker& worker, const SimCoordinator& coordinator, int64_t committed, int64_t stage) const;
  bool can_call(SimCoordinator& coordinator) const { return coordinator.is_up() && !coordinator.is_frozen(); }

  const Stage& stage_;
  const uint64_t seed_;
  const bool open_;
  const bool traces_;
  const RunConfig config_;
  const std::string config_sha256_;
  const std::string corpus_ = std::string(64, 'c');
  std::filesystem::path folder_;
  Events events_;
  Dice dice_;
  SqliteDisk sqlite_;
  DiskSwitch switch_;
  std::optional<ScopedFileSystem> scoped_;
  std::vector<PlannedFault> plan_;
  int processes_ = 0;
  uint64_t file_operations_ = 0;
  bool disk_may_fail_ = false;  // also while a coordinator starts
  int disk_fault_ = 0;          // errno with which everything fails now; 0: nothing does
  Duration wall_offset_{};
  bool calm_ = false;
  int kicks_ = 0;

  std::vector<std::unique_ptr<SimCoordinator>> coordinators_;  // the first, and one from a backup
  size_t served_ = 0;                                          // which of them counts in the end
  std::set<size_t> wanted_up_;                                 // the owner starts these again
  bool has_backup_ = false;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<std::string> invites_;                                        // their tokens
  std::map<std::pair<std::string, std::string>, TimePoint> peers_cut_off_;  // until
  std::map<std::string, TimePoint> cut_off_;
  std::map<std::tuple<uint64_t, uint64_t, int64_t>, UnitStates> expected_;
  std::map<std::tuple<uint64_t, uint64_t, int64_t>, control::Commit> commits_;
};

}  // namespace thinpipe::sim
