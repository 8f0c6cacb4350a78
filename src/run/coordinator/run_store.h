// The coordinator's state in SQLite, from which a restarted coordinator continues. Every change is on the disk when the
// call returns. metrics.jsonl and timing.jsonl are copies of its rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/invite.h"
#include "run/core/effects.h"

struct sqlite3;

namespace thinpipe {

struct StoredRun;  // run/core/coordinator_core.h

// 32 hex digits that no other run has.
std::string new_run_id();

// A worker that has traded an invite for a certificate.
struct PeerRow {
  std::string peer;
  std::string invite;          // its id
  std::string request_sha256;  // of the certificate request
};

class RunStore {
 public:
  // Opens or makes the database. Returns an error that names the file if it is not a database, has a later version, or
  // is locked by another process.
  static Result<RunStore> open(const std::filesystem::path& path);
  ~RunStore();
  RunStore(RunStore&& other) noexcept;
  RunStore& operator=(RunStore&&) = delete;

  // Small facts by name: "run", "epoch", "generation", "state_revision", "paused", "port", "corpus", "begun_from".
  Status set(const std::string& name, const std::string& value);
  Result<std::optional<std::string>> get(const std::string& name) const;

  // The state that a coordinator starts from, except the cuts and the checkpoint, which are files in the run's folder.
  Result<StoredRun> load() const;

  // One transaction: stores the epoch and the roster; with drop_from >= 0, deletes the rows that a rollback forgets.
  Status set_epoch(const PersistEpoch& epoch);
  // Begins a new generation in which nobody holds a stage; returns its epoch.
  Result<uint64_t> forget_holders();
  Result<std::vector<std::string>> roster() const;

  // One transaction: stores the row, and whose commit it is.
  Status add_commit(const CommitRow& row);
  // Returns the rows from that step on, in order.
  Result<std::vector<CommitRow>> commits(int64_t from = 0) const;
  Status add_evaluation(const PersistEvaluation& evaluation);
  Result<std::vector<PersistEvaluation>> evaluations() const;
  // Forgets the evaluation at the end of the run, because the end moves.
  Status forget_end();

  // Adds the invite, or replaces the one with the same id.
  Status put_invite(const InviteRecord& invite);
  Result<std::vector<InviteRecord>> invites() const;
  // One transaction: takes a use from the invite and remembers the peer by its certificate request.
  Status enrol(const PeerRow& peer);
  // Returns the peer that has enrolled with that request before.
  Result<std::optional<PeerRow>> peer_with_key(const std::string& request_sha256) const;
  Result<std::optional<PeerRow>> peer_named(const std::string& peer) const;
  Status revoke_peer(const std::string& peer);
  Status pardon_peer(const std::string& peer);
  // The names of all who have enrolled by an invite.
  Result<std::vector<std::string>> peers() const;

  Status add_event(const std::string& kind, const std::string& text);
  // Returns events with a higher number than `after`, at most `most` of them, the newest if there are more.
  Result<std::vector<control::EventLine>> events(int64_t after, int64_t most) const;

 private:
  RunStore(std::filesystem::path path, sqlite3* database) : path_(std::move(path)), database_(database) {}

  Status in_transaction(const std::function<Status()>& change);
  Result<std::optional<PeerRow>> peer_where(const std::string& condition, const std::string& value) const;

  std::filesystem::path path_;
  sqlite3* database_;
};

}  // namespace thinpipe
