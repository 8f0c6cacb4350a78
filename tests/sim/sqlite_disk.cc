#include "sqlite_disk.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace thinpipe::sim {
namespace {

constexpr size_t kSector = 512;  // a torn write ends at a multiple of it

// One open file of one process. SQLite allocates it, as a sqlite3_file.
struct OpenFile {
  sqlite3_file base;
  SqliteDisk* disk;
  std::shared_ptr<StoredFile> file;
  int process;
  int lock;
};

OpenFile& of(sqlite3_file* file) { return *reinterpret_cast<OpenFile*>(file); }
bool is_dead(const OpenFile& open) { return open.disk->is_dead(open.process); }

int close_file(sqlite3_file* file) {
  auto& open = of(file);
  if (open.lock > SQLITE_LOCK_NONE && open.file->owner == open.process) open.file->owner = -1;
  open.file.~shared_ptr();
  return SQLITE_OK;
}

int read_file(sqlite3_file* file, void* out, int amount, sqlite3_int64 offset) {
  auto& open = of(file);
  if (is_dead(open)) return SQLITE_IOERR_READ;
  const auto& bytes = open.file->bytes;
  const auto from = std::min(bytes.size(), static_cast<size_t>(offset));
  const auto count = std::min(bytes.size() - from, static_cast<size_t>(amount));
  std::memcpy(out, bytes.data() + from, count);
  std::memset(static_cast<char*>(out) + count, 0, static_cast<size_t>(amount) - count);
  return count == static_cast<size_t>(amount) ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

void put(std::string& bytes, size_t offset, const std::string& part) {
  if (bytes.size() < offset + part.size()) bytes.resize(offset + part.size());
  bytes.replace(offset, part.size(), part);
}

int write_file(sqlite3_file* file, const void* from, int amount, sqlite3_int64 offset) {
  auto& open = of(file);
  if (is_dead(open)) return SQLITE_IOERR_WRITE;
  bool half = false;
  const int code = open.disk->next_write(half);
  if (code != SQLITE_OK) open.file->given_up = open.file->unsynced.size() + (half ? 1 : 0);
  if (code != SQLITE_OK && !half) return code;
  std::string part(static_cast<const char*>(from), static_cast<size_t>(half ? amount / 2 : amount));
  put(open.file->bytes, static_cast<size_t>(offset), part);
  open.file->unsynced.emplace_back(static_cast<size_t>(offset), std::move(part));
  return code;
}

int truncate_file(sqlite3_file* file, sqlite3_int64 size) {
  auto& open = of(file);
  if (is_dead(open)) return SQLITE_IOERR_TRUNCATE;
  bool half = false;
  if (open.disk->next_write(half) != SQLITE_OK) return SQLITE_IOERR_TRUNCATE;
  open.file->bytes.resize(static_cast<size_t>(size));
  open.file->cut = true;
  return SQLITE_OK;
}

int sync_file(sqlite3_file* file, int) {
  auto& open = of(file);
  if (is_dead(open)) return SQLITE_IOERR_FSYNC;
  bool half = false;
  if (open.disk->next_write(half) != SQLITE_OK) {
    open.file->given_up = open.file->unsynced.size();
    return SQLITE_IOERR_FSYNC;
  }
  for (const auto& [offset, part] : open.file->unsynced) put(open.file->synced, offset, part);
  if (open.file->cut) open.file->synced = open.file->bytes;
  open.file->unsynced.clear();
  open.file->given_up = 0;
  open.file->cut = false;
  return SQLITE_OK;
}

int file_size(sqlite3_file* file, sqlite3_int64* size) {
  if (is_dead(of(file))) return SQLITE_IOERR_FSTAT;
  *size = static_cast<sqlite3_int64>(of(file).file->bytes.size());
  return SQLITE_OK;
}

// Any lock keeps all other processes out: a coordinator takes it for good.
int lock_file(sqlite3_file* file, int level) {
  auto& open = of(file);
  if (is_dead(open)) return SQLITE_IOERR_LOCK;
  if (open.file->owner != -1 && open.file->owner != open.process) return SQLITE_BUSY;
  open.file->owner = open.process;
  open.lock = level;
  return SQLITE_OK;
}

int unlock_file(sqlite3_file* file, int level) {
  auto& open = of(file);
  if (level == SQLITE_LOCK_NONE && open.file->owner == open.process) open.file->owner = -1;
  open.lock = level;
  return SQLITE_OK;
}

int check_lock(sqlite3_file* file, int* taken) {
  *taken = of(file).file->owner != -1;
  return SQLITE_OK;
}

int control_file(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int sector_size(sqlite3_file*) { return static_cast<int>(kSector); }
int traits(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

const sqlite3_io_methods kMethods{
    .iVersion = 1,
    .xClose = close_file,
    .xRead = read_file,
    .xWrite = write_file,
    .xTruncate = truncate_file,
    .xSync = sync_file,
    .xFileSize = file_size,
    .xLock = lock_file,
    .xUnlock = unlock_file,
    .xCheckReservedLock = check_lock,
    .xFileControl = control_file,
    .xSectorSize = sector_size,
    .xDeviceCharacteristics = traits,
    .xShmMap = nullptr,
    .xShmLock = nullptr,
    .xShmBarrier = nullptr,
    .xShmUnmap = nullptr,
    .xFetch = nullptr,
    .xUnfetch = nullptr,
};

SqliteDisk& disk_of(sqlite3_vfs* vfs) { return *static_cast<SqliteDisk*>(vfs->pAppData); }

int open_file(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  auto& disk = disk_of(vfs);
  auto& open = of(file);
  open.base.pMethods = nullptr;
  auto found = disk.find(name == nullptr ? "temporary" : name, (flags & SQLITE_OPEN_CREATE) != 0);
  if (!found) return SQLITE_CANTOPEN;
  new (&open.file) std::shared_ptr<StoredFile>(std::move(found));
  open.base.pMethods = &kMethods;
  open.disk = &disk;
  open.process = disk.process();
  open.lock = SQLITE_LOCK_NONE;
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int delete_file(sqlite3_vfs* vfs, const char* name, int) {
  auto& disk = disk_of(vfs);
  if (disk.is_dead(disk.process())) return SQLITE_IOERR_DELETE;
  disk.remove(name);
  return SQLITE_OK;
}

int access_file(sqlite3_vfs* vfs, const char* name, int, int* there) {
  *there = disk_of(vfs).find(name, false) != nullptr;
  return SQLITE_OK;
}

int full_name(sqlite3_vfs*, const char* name, int room, char* out) {
  sqlite3_snprintf(room, out, "%s", name);
  return SQLITE_OK;
}

// The same for every simulation.
int randomness(sqlite3_vfs*, int count, char* out) {
  for (int i = 0; i < count; ++i) out[i] = static_cast<char>(i * 37 + 11);
  return count;
}
int no_sleep(sqlite3_vfs*, int) { return SQLITE_OK; }
int current_time(sqlite3_vfs*, double* days) {
  *days = 2460000;
  return SQLITE_OK;
}
int last_error(sqlite3_vfs*, int, char*) { return 0; }

}  // namespace

SqliteDisk::SqliteDisk() : vfs_(std::make_unique<sqlite3_vfs>()) {
  vfs_->iVersion = 1;
  vfs_->szOsFile = sizeof(OpenFile);
  vfs_->mxPathname = 512;
  vfs_->zName = "thinpipe-sim";
  vfs_->pAppData = this;
  vfs_->xOpen = open_file;
  vfs_->xDelete = delete_file;
  vfs_->xAccess = access_file;
  vfs_->xFullPathname = full_name;
  vfs_->xRandomness = randomness;
  vfs_->xSleep = no_sleep;
  vfs_->xCurrentTime = current_time;
  vfs_->xGetLastError = last_error;
  sqlite3_vfs_register(vfs_.get(), /*makeDflt=*/1);
  sqlite3_randomness(0, nullptr);  // SQLite begins its own random numbers again
}

SqliteDisk::~SqliteDisk() { sqlite3_vfs_unregister(vfs_.get()); }

std::shared_ptr<StoredFile> SqliteDisk::find(const std::string& path, bool create) {
  const auto found = files_.find(path);
  if (found != files_.end()) return found->second;
  return create ? files_.emplace(path, std::make_shared<StoredFile>()).first->second : nullptr;
}

void SqliteDisk::kill(int process) {
  dead_[process] = true;
  for (auto& [path, file] : files_) {
    if (file->owner == process) file->owner = -1;
  }
}

void SqliteDisk::lose_power(const std::string& prefix, Dice& dice) {
  for (auto& [path, file] : files_) {
    if (!path.starts_with(prefix)) continue;
    // Some of the writes have reached the disk, in any order, and one of them only in part.
    for (const auto& [offset, part] : file->unsynced) {
      if (dice.one_in(2)) continue;
      const size_t whole = dice.one_in(4) ? dice.below(part.size() / kSector + 1) * kSector : part.size();
      put(file->synced, offset, part.substr(0, whole));
    }
    file->unsynced.clear();
    file->given_up = 0;
    file->cut = false;
    file->bytes = file->synced;
  }
}

void SqliteDisk::copy(const std::string& from_prefix, const std::string& to_prefix) {
  std::map<std::string, std::shared_ptr<StoredFile>> copies;
  for (const auto& [path, file] : files_) {
    if (!path.starts_with(from_prefix)) continue;
    auto made = std::make_shared<StoredFile>();
    made->bytes = made->synced = file->synced;
    copies[to_prefix + path.substr(from_prefix.size())] = std::move(made);
  }
  files_.merge(copies);
}

bool SqliteDisk::log_is_synced(const std::string& prefix) const {
  return std::all_of(files_.begin(), files_.end(), [&](const auto& entry) {
    return !entry.first.starts_with(prefix) || !entry.first.ends_with("-wal") ||
           (entry.second->unsynced.size() == entry.second->given_up && !entry.second->cut);
  });
}

void SqliteDisk::fail(SqliteFault fault, bool sticky, uint64_t skipped) {
  fault_ = fault;
  sticky_ = sticky;
  skipped_ = skipped;
}

int SqliteDisk::next_write(bool& half) {
  ++writes_;
  if (fault_ == SqliteFault::kNone) return SQLITE_OK;
  if (skipped_ > 0) {
    --skipped_;
    return SQLITE_OK;
  }
  ++faults_;
  const auto fault = fault_;
  if (!sticky_) fault_ = SqliteFault::kNone;
  half = fault == SqliteFault::kShortWrite;
  return fault == SqliteFault::kIoError ? SQLITE_IOERR_WRITE : SQLITE_FULL;
}

}  // namespace thinpipe::sim
