// A coordinator's process in a simulation: the real desk, store, checkpoints and admission on a disk that can fail.
// Also watches it: whatever the desk sends or writes is compared with the history of its commits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "chain_model.h"
#include "net/door.h"
#include "run/coordinator/admission.h"
#include "run/coordinator/run_desk.h"
#include "support/faulty_file_system.h"
#include "virtual_time.h"

namespace thinpipe::sim {

class World;
struct Connection;

// Passes file operations on to the disk of the process that is at work.
class DiskSwitch final : public FileSystem {
 public:
  FileSystem* current = nullptr;
  std::function<void()> before;  // called before each operation

  int create_unique(std::string& pattern, mode_t mode) override { return next().create_unique(pattern, mode); }
  ssize_t write(int fd, const char* bytes, size_t count) override { return next().write(fd, bytes, count); }
  ssize_t pwrite(int fd, const char* bytes, size_t count, int64_t offset) override {
    return next().pwrite(fd, bytes, count, offset);
  }
  int fsync(int fd) override { return next().fsync(fd); }
  int close(int fd) override { return next().close(fd); }
  int rename(const std::string& from, const std::string& to) override { return next().rename(from, to); }
  int unlink(const std::string& path) override { return next().unlink(path); }
  int mkdir(const std::string& path) override { return next().mkdir(path); }
  int rmdir(const std::string& path) override { return next().rmdir(path); }
  int sync_directory(const std::string& path) override { return next().sync_directory(path); }

 private:
  FileSystem& next() {
    if (before) before();
    return *current;
  }
};

class SimCoordinator final : private Outbox {
 public:
  SimCoordinator(World& world, std::string name, std::filesystem::path folder);
  ~SimCoordinator() override;

  // ---- the process ----

  // `serve`. An error is the line that the owner reads.
  Status start();
  // With `power`, what was not synced is lost.
  void kill(bool power);
  // The owner copies the folder of another one, which may be at work.
  void restore_backup_of(const SimCoordinator& other);
  void freeze(Duration time) { frozen_until_ = std::max(frozen_until_, now() + time); }
  bool is_up() const { return desk_ != nullptr; }
  int life() const { return life_; }
  TimePoint frozen_until() const { return frozen_until_; }
  bool is_frozen() const { return now() < frozen_until_; }
  const std::string& name() const { return name_; }
  const std::optional<Finish>& finished() const { return finished_; }  // without a failure
  const History& history() const { return history_; }
  uint64_t generation() const { return generation_; }
  test::FaultyFileSystem& disk() { return *disk_; }
  const RunDesk& desk() const { return *desk_; }
  std::filesystem::path store_path() const { return folder_ / "run.sqlite"; }
  bool is_paused() const;
  bool has_revoked(const std::string& peer) const { return revoked_.contains(peer); }
  bool has_connected_holder(int64_t stage) const;
  // What the holder of that stage's state would say.
  control::Holding holding_of(int64_t stage);
  // Whether the last checkpoint is of that step and holds just the states of the history.
  void check_checkpoint(int64_t step);

  // ---- calls; only while it is up and not frozen ----

  void tick();
  Result<SessionId> accept(const std::shared_ptr<Connection>& line, const std::string& peer);
  void hear(SessionId session, const control::FromWorker& message);
  void hung_up(SessionId session);
  // Somebody connects from there, and says nothing.
  void stranger(const std::string& address);
  void control(control::ControlRequest::What what);
  void kick(const std::string& peer);
  // Enrols with the token of an invite. Returns the peer's name.
  Result<std::string> join(const std::string& token, const std::string& name, const std::string& request);
  Result<std::string> new_invite(int64_t uses);
  Result<std::string> fetch(const std::string& peer, const control::StateFile& file);
  // An upload in three parts. nullopt: nobody needs the file.
  Result<std::optional<int64_t>> begin_upload(const Connection& line, const control::StateFile& file);
  Status continue_upload(int64_t upload, const std::string& part);
  Status end_upload(int64_t upload);
  void give_up_upload(int64_t upload);

 private:
  struct Upload {
    SessionId session;
    std::string peer;
    control::StateFile file;
    std::string bytes;
    std::optional<IncomingFile> incoming;
    int64_t parts = 0;
  };

  Status send(SessionId session, control::ToWorker message) override;
  void close(SessionId session) override;
  void epoch_began(uint64_t epoch) override;

  TimePoint now() const;
  // Makes this process the one at work.
  void enter();
  // After every call: compares what is durable with the history.
  void observe();
  void observe_rows();
  void observe_end();
  void check_heard(const control::RunStatus& before, const control::FromWorker& message) const;
  void check_sent(SessionId session, const control::ToWorker& message);
  void check_form(SessionId session, const control::Form& form);
  void exit();
  // A number in the store.
  control::RunStatus status() const;
  uint64_t fact(const char* name);
  bool disk_has_failed() const;

  World& world_;
  const std::string name_;
  const std::filesystem::path folder_;
  std::unique_ptr<test::FaultyFileSystem> disk_;
  std::unique_ptr<RunDesk> desk_;
  std::unique_ptr<Admission> admission_;
  // The door, and what the simulation itself knows about those who came in.
  bool let_in(int connection, const std::string& address);
  void watch_strangers();
  void close_door();
  struct Stranger {
    std::string network;
    TimePoint since;
  };
  std::optional<DoorBook> door_;  // while it is up
  int connections_ = 0;
  std::map<int, Stranger> strangers_;
  std::map<SessionId, int> connection_of_;

  std::map<SessionId, std::shared_ptr<Connection>> lines_;
  std::map<int64_t, Upload> uploads_;
  History history_;
  std::optional<Finish> finished_;
  int life_ = 0;
  int process_ = 0;
  uint64_t revision_ = 0;
  uint64_t generation_ = 0;  // of the last Form, or as a start found it
  TimePoint frozen_until_{};
  std::optional<int64_t> unsure_count_;  // of rows, if writing the last decision failed: it may be durable all the same
  uint64_t faults_before_ = 0;           // of SQLite's disk, before this life
  int64_t manifest_step_ = -1;
  std::set<std::string> revoked_;
  struct Invite {
    size_t uses = 0;
    std::set<std::string> peers;  // that came by it
  };
  std::map<std::string, Invite> invites_;  // by token. A restored backup has forgotten later uses
};

}  // namespace thinpipe::sim
