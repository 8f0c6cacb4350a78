#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/log.h"
#include "base/sha256.h"

namespace thinpipe {
namespace {

Error system_error(const std::filesystem::path& path, std::string_view action) {
  return Error{fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(errno))};
}

// O_NONBLOCK: opening a pipe must not wait for a writer; its type is checked and refused afterwards.
int open_to_read(const std::filesystem::path& path) { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

// Refuses everything but regular files, which alone have a size.
Result<size_t> regular_size(const Fd& file, const std::filesystem::path& path) {
  if (file.get() < 0) return system_error(path, "read");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return system_error(path, "read");
  if (S_ISDIR(status.st_mode)) return Error{fmt::format("cannot read {}: it is a folder, not a file", path.string())};
  if (!S_ISREG(status.st_mode)) return Error{fmt::format("cannot read {}: it is not a regular file", path.string())};
  return static_cast<size_t>(status.st_size);
}

// Fills `buffer`, or less of it at the end of the file, which may have shrunk since its size was read.
Result<size_t> read_some(const Fd& file, const std::filesystem::path& path, std::span<char> buffer) {
  size_t filled = 0;
  while (filled < buffer.size()) {
    const ssize_t count = ::read(file.get(), buffer.data() + filled, buffer.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(path, "read");
    if (count == 0) break;
    filled += static_cast<size_t>(count);
  }
  return filled;
}

Result<std::string> read_all(const Fd& file, const std::filesystem::path& path) {
  const size_t size = TRY(regular_size(file, path));
  std::string bytes(size, '\0');
  const size_t filled = TRY(read_some(file, path, bytes));
  bytes.resize(filled);
  return bytes;
}

Status write_all(int descriptor, std::string_view bytes, int64_t offset, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = offset < 0 ? file_system().write(descriptor, bytes.data(), bytes.size())
                                       : file_system().pwrite(descriptor, bytes.data(), bytes.size(), offset);
    if (written < 0) {
      if (errno == EINTR) continue;
      return system_error(path, "write");
    }
    bytes.remove_prefix(static_cast<size_t>(written));
    if (offset >= 0) offset += written;
  }
  return {};
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// The file that a rename may replace, at the end of a chain of links; it need not exist yet. Refuses devices and pipes,
// because the rename would replace them with a file.
Result<std::filesystem::path> file_to_replace(std::filesystem::path path) {
  constexpr int kMaxLinks = 40;  // as in the kernel
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return Error{fmt::format("cannot write {}: it is {}, not a file", path.string(), kind_of(status.st_mode))};
  }
  for (int links = 0; ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode); ++links) {
    std::error_code code;
    const auto next = std::filesystem::read_symlink(path, code);
    if (links == kMaxLinks) code = std::make_error_code(std::errc::too_many_symbolic_link_levels);
    if (code) return Error{fmt::format("cannot write {}: {}", path.string(), code.message())};
    path = parent_of(path) / next;
  }
  return path;
}

constexpr std::string_view kPartial = ".partial-";
constexpr std::string_view kUnique = "XXXXXX";

// Removes partial files whose writers were killed. A living writer holds a lock on its partial file. Errors are
// ignored: leftovers do no harm.
void remove_abandoned(const std::filesystem::path& target) {
  const std::string prefix = target.filename().string() + std::string(kPartial);
  std::vector<std::filesystem::path> partials;
  std::error_code code;
  for (std::filesystem::directory_iterator entry(parent_of(target), code), end; !code && entry != end;
       entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && name.size() == prefix.size() + kUnique.size()) partials.push_back(entry->path());
  }
  for (const auto& path : partials) {
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
    struct stat status {};
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) file_system().unlink(path.string());
  }
}

// Between the creation of a partial file and its lock, another process may remove it as abandoned. Returns false then.
// Without support for locks nobody removes partial files either.
bool lock_partial(int descriptor) {
  while (::flock(descriptor, LOCK_EX) != 0) {
    if (errno != EINTR) return true;
  }
  struct stat status {};
  return ::fstat(descriptor, &status) != 0 || status.st_nlink > 0;
}

constexpr std::string_view kPartialFolder = ".partial";  // ".NAME.partial"

// Returns false if the folder was renamed or removed after it was opened; a new folder may have its name.
bool still_has_name(const Fd& folder, const std::filesystem::path& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(folder.get(), &held) == 0 && ::lstat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

// Creates the folder if it is missing and locks it while the descriptor is open. Returns no descriptor if another
// process holds the lock and there is no `on_wait`. On a file system without locks nobody waits.
Result<Fd> make_locked(const std::filesystem::path& folder, const std::function<void()>& on_wait) {
  for (bool waited = false;;) {
    if (file_system().mkdir(folder.string()) != 0 && errno != EEXIST) return system_error(folder, "create folder");
    Fd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!lock && errno == ENOENT) continue;
    if (!lock) return system_error(folder, "open folder");
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      if (!on_wait) return Fd();
      if (!std::exchange(waited, true)) on_wait();
      while (::flock(lock.get(), LOCK_EX) != 0 && errno == EINTR) {
      }
    }
    if (still_has_name(lock, folder)) return lock;
  }
}

}  // namespace

void Fd::reset(int descriptor) {
  const int reason = errno;
  if (descriptor_ >= 0) ::close(descriptor_);
  errno = reason;
  descriptor_ = descriptor;
}

Result<Fd> lock_folder(const std::filesystem::path& folder) {
  TRY(make_directories(folder));
  return make_locked(folder, nullptr);
}

std::filesystem::path data_dir() {
  if (const char* chosen = std::getenv("THINPIPE_DATA_DIR"); chosen != nullptr && *chosen != '\0') return chosen;
  if (const char* xdg = std::getenv("XDG_DATA_HOME"); xdg != nullptr && *xdg != '\0') {
    return std::filesystem::path(xdg) / "thinpipe";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return std::filesystem::path(home) / ".local/share/thinpipe";
  }
  throw UserError("no folder for data: set THINPIPE_DATA_DIR (or HOME) to a writable folder");
}

Result<std::string> read_file(const std::filesystem::path& path) { return read_all(Fd(open_to_read(path)), path); }

Result<std::string> sha256_of_file(const std::filesystem::path& path) {
  const Fd file(open_to_read(path));
  TRY(regular_size(file, path));
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (true) {
    const size_t count = TRY(read_some(file, path, buffer));
    hash.update({buffer.data(), count});
    if (count < buffer.size()) return hash.hex();
  }
}

Result<std::string> read_private_file(const std::filesystem::path& path) {
  const Fd file(open_to_read(path));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) return system_error(path, "read");
  if ((status.st_mode & 077) != 0) {
    return Error{
        fmt::format("{} is secret, but others on this machine may read or change it (mode {:04o}): chmod 600 {}",
                    path.string(), status.st_mode & 07777, path.string())};
  }
  return read_all(file, path);
}

Status make_directories(const std::filesystem::path& path) {
  std::filesystem::path folder;
  for (const auto& part : path) {
    folder /= part;
    std::error_code ignored;
    if (std::filesystem::is_directory(folder, ignored)) continue;
    if (file_system().mkdir(folder.string()) != 0) {
      const bool is_taken = errno == EEXIST;
      const Error error = system_error(path, "create folder");
      // Another process may have created it in the meantime.
      if (!std::filesystem::is_directory(folder, ignored)) {
        if (!is_taken) return error;
        return Error{
            fmt::format("cannot create folder {}: {} exists and is not a folder", path.string(), folder.string())};
      }
    }
    TRY(sync_directory(parent_of(folder)));
  }
  return {};
}

Status rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (file_system().rename(from.string(), to.string()) == 0) return {};
  return Error{fmt::format("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno))};
}

Status sync_directory(const std::filesystem::path& path) {
  if (file_system().sync_directory(path.string()) == 0) return {};
  if (errno == EINVAL || errno == ENOTSUP || errno == EACCES) return {};
  return system_error(path, "write folder");
}

Status remove_contents(const std::filesystem::path& folder) {
  std::error_code code;
  std::vector<std::filesystem::path> held;
  for (std::filesystem::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    held.push_back(entry->path());
  }
  if (code) return Error{fmt::format("cannot remove {}: {}", folder.string(), code.message())};
  for (const auto& entry : held) TRY(remove_tree(entry));
  return {};
}

Status remove_tree(const std::filesystem::path& path) {
  std::error_code code;
  const auto type = std::filesystem::symlink_status(path, code).type();
  if (type == std::filesystem::file_type::not_found) return {};
  if (type != std::filesystem::file_type::directory) {
    return file_system().unlink(path.string()) == 0 || errno == ENOENT ? Status() : system_error(path, "remove");
  }
  TRY(remove_contents(path));
  return file_system().rmdir(path.string()) == 0 || errno == ENOENT ? Status() : system_error(path, "remove");
}

AtomicFile::AtomicFile(std::filesystem::path path, std::filesystem::path temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  file_system().close(descriptor_);
  file_system().unlink(temporary_.string());
}

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path, FileMode mode) {
  const auto target = TRY(file_to_replace(path));
  remove_abandoned(target);
  while (true) {
    std::string temporary = fmt::format("{}{}{}", target.string(), kPartial, kUnique);
    const int descriptor = file_system().create_unique(temporary, mode == FileMode::kPrivate ? 0600 : 0644);
    if (descriptor < 0) return system_error(path, "write");
    if (lock_partial(descriptor)) return AtomicFile(target, temporary, descriptor);
    file_system().close(descriptor);
  }
}

Status AtomicFile::append(std::string_view bytes) { return write_all(descriptor_, bytes, -1, path_); }

Status AtomicFile::write_at(uint64_t offset, std::string_view bytes) {
  return write_all(descriptor_, bytes, static_cast<int64_t>(offset), path_);
}

Status AtomicFile::flush() {
  if (file_system().fsync(descriptor_) != 0) return system_error(path_, "write");
  return {};
}

Status AtomicFile::commit() {
  TRY(flush());
  if (file_system().rename(temporary_.string(), path_.string()) != 0) return system_error(path_, "write");
  file_system().close(std::exchange(descriptor_, -1));  // its bytes are already on the disk, errors do not matter
  return sync_directory(parent_of(path_));
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view bytes, FileMode mode) {
  auto file = TRY(AtomicFile::create(path, mode));
  TRY(file.append(bytes));
  return file.commit();
}

Result<std::optional<AtomicFolder>> AtomicFolder::open(const std::filesystem::path& path,
                                                       const std::function<void()>& on_wait) {
  auto target = std::filesystem::absolute(path).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "out/"
  TRY(make_directories(target.parent_path()));
  const auto hidden = target.parent_path() / fmt::format(".{}{}", target.filename().string(), kPartialFolder);
  auto lock = TRY(make_locked(hidden, on_wait));
  if (!lock) return std::optional<AtomicFolder>();
  AtomicFolder folder(target, hidden, std::move(lock));
  TRY(remove_contents(hidden));  // remains of a killed process
  return std::optional(std::move(folder));
}

Result<AtomicFolder> AtomicFolder::create(const std::filesystem::path& path, const std::function<void()>& on_wait) {
  const auto log_it = [&] { log_info("waiting for another process that is writing {}", path.string()); };
  auto folder = TRY(open(path, on_wait ? on_wait : log_it));
  return *std::move(folder);
}

Result<AtomicFolder> AtomicFolder::create_new(const std::filesystem::path& parent, const std::string& name) {
  for (int attempt = 1; attempt < 1000; ++attempt) {
    auto folder = TRY(open(parent / (attempt == 1 ? name : fmt::format("{}-{}", name, attempt)), {}));
    std::error_code ignored;
    if (folder && !std::filesystem::exists(folder->target(), ignored)) return *std::move(folder);
  }
  return Error{fmt::format("cannot find a new name for a folder in {}", parent.string())};
}

void AtomicFolder::remove_abandoned(const std::filesystem::path& parent) {
  std::vector<std::filesystem::path> hidden;
  std::error_code code;
  for (std::filesystem::directory_iterator entry(parent, code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') && name.ends_with(kPartialFolder)) hidden.push_back(entry->path());
  }
  for (const auto& path : hidden) {
    const Fd lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0 && still_has_name(lock, path)) (void)remove_tree(path);
  }
}

AtomicFolder::AtomicFolder(AtomicFolder&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::exchange(other.path_, std::filesystem::path())),
      lock_(std::move(other.lock_)) {}

AtomicFolder::~AtomicFolder() {
  if (!path_.empty()) (void)remove_tree(path_);
}

bool AtomicFolder::is_taken() const {
  std::error_code code;
  const auto type = std::filesystem::symlink_status(target_, code).type();
  if (type == std::filesystem::file_type::not_found) return false;
  return type != std::filesystem::file_type::directory || !std::filesystem::is_empty(target_, code) || code;
}

Status AtomicFolder::commit() {
  TRY(sync_directory(path_));
  TRY(rename_path(path_, target_));
  path_.clear();
  lock_.reset();
  return sync_directory(parent_of(target_));
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Fd file(open_to_read(path));
  const size_t size = TRY(regular_size(file, path));
  if (size == 0) return MappedFile(nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return system_error(path, "map");
  return MappedFile(static_cast<const char*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::forget(std::string_view part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  // Whole pages only: the bytes beside them may still be needed soon.
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that was rounded up to a page
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace thinpipe
