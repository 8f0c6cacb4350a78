// SQLite's files in memory, behind SQLite's own seam (a VFS, the process's default while this object lives). Each
// process that is simulated has files of its own: it can be killed at any time, lose what was not synced, and its disk
// can fail once or for a while. Locks work as between real processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "virtual_time.h"

struct sqlite3_vfs;

namespace thinpipe::sim {

struct StoredFile {
  std::string bytes;                                     // what a reader sees
  std::string synced;                                    // what is on the disk for certain
  std::vector<std::pair<size_t, std::string>> unsynced;  // writes since: offset and bytes
  size_t given_up = 0;                                   // the first so many of them are of transactions that failed
  bool cut = false;                                      // shortened since
  int owner = -1;                                        // the process that has locked it; -1: nobody
};

enum class SqliteFault { kNone, kIoError, kFull, kShortWrite };

class SqliteDisk {
 public:
  SqliteDisk();
  ~SqliteDisk();
  SqliteDisk(const SqliteDisk&) = delete;
  SqliteDisk& operator=(const SqliteDisk&) = delete;

  // The process on whose behalf SQLite is called from now on.
  void become(int process) { process_ = process; }
  // Every call of a killed process fails from now on, and its locks are gone.
  void kill(int process);
  // Of the files whose names begin so: what was not synced is lost, wholly or in part.
  void lose_power(const std::string& prefix, Dice& dice);
  // As a backup would: what is synced.
  void copy(const std::string& from_prefix, const std::string& to_prefix);
  // Whether the write-ahead logs are on the disk. A database file need not be: what it lacks is in its log.
  bool log_is_synced(const std::string& prefix) const;

  // The operation after `skipped` others fails; with `sticky`, all after it too, until mend().
  void fail(SqliteFault fault, bool sticky, uint64_t skipped = 0);
  void mend() { fault_ = SqliteFault::kNone; }
  uint64_t faults() const { return faults_; }
  uint64_t writes() const { return writes_; }  // operations that change the disk

  // For the VFS.
  int process() const { return process_; }
  bool is_dead(int process) const { return dead_.contains(process); }
  std::shared_ptr<StoredFile> find(const std::string& path, bool create);
  void remove(const std::string& path) { files_.erase(path); }
  // SQLITE_OK, or the code with which the operation fails. `half`: set if it happens in part.
  int next_write(bool& half);

 private:
  std::unique_ptr<sqlite3_vfs> vfs_;
  std::map<std::string, std::shared_ptr<StoredFile>> files_;
  std::map<int, bool> dead_;
  int process_ = 0;
  SqliteFault fault_ = SqliteFault::kNone;
  bool sticky_ = false;
  uint64_t skipped_ = 0, faults_ = 0, writes_ = 0;
};

}  // namespace thinpipe::sim
