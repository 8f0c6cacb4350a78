#include "base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace thinpipe {
namespace {

Error system_error(const std::filesystem::path& path, std::string_view action) {
  return Error{fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(errno))};
}

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Opens for reading and finds the size; only regular files have one.
Result<size_t> regular_size(const Descriptor& file, const std::filesystem::path& path) {
  if (file.get() < 0) return system_error(path, "read");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return system_error(path, "read");
  if (S_ISDIR(status.st_mode)) return Error{fmt::format("cannot read {}: it is a folder, not a file", path.string())};
  if (!S_ISREG(status.st_mode)) return Error{fmt::format("cannot read {}: it is not a regular file", path.string())};
  return static_cast<size_t>(status.st_size);
}

Status write_all(int descriptor, std::string_view bytes, int64_t offset, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = offset < 0 ? ::write(descriptor, bytes.data(), bytes.size())
                                       : ::pwrite(descriptor, bytes.data(), bytes.size(), offset);
    if (written < 0) {
      if (errno == EINTR) continue;
      return system_error(path, "write");
    }
    bytes.remove_prefix(static_cast<size_t>(written));
    if (offset >= 0) offset += written;
  }
  return {};
}

}  // namespace

std::filesystem::path data_dir() {
  if (const char* chosen = std::getenv("THINPIPE_DATA_DIR"); chosen != nullptr && *chosen != '\0') return chosen;
  if (const char* xdg = std::getenv("XDG_DATA_HOME"); xdg != nullptr && *xdg != '\0') {
    return std::filesystem::path(xdg) / "thinpipe";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return std::filesystem::path(home) / ".local/share/thinpipe";
  }
  throw UserError("no place for data: set THINPIPE_DATA_DIR (or HOME) to a folder you can write to");
}

Result<std::string> read_file(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto size = regular_size(file, path);
  if (!size) return size.error();
  std::string bytes(size.value(), '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(path, "read");
    if (count == 0) break;  // it shrank while we read
    filled += static_cast<size_t>(count);
  }
  bytes.resize(filled);
  return bytes;
}

Status make_directories(const std::filesystem::path& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) return Error{fmt::format("cannot create folder {}: {}", path.string(), code.message())};
  return {};
}

AtomicFile::AtomicFile(std::filesystem::path path, std::filesystem::path temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  std::string temporary = path.string() + ".partial-XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0) return system_error(path, "write");
  ::fchmod(descriptor, 0644);
  return AtomicFile(path, temporary, descriptor);
}

Status AtomicFile::append(std::string_view bytes) { return write_all(descriptor_, bytes, -1, path_); }

Status AtomicFile::write_at(uint64_t offset, std::string_view bytes) {
  return write_all(descriptor_, bytes, static_cast<int64_t>(offset), path_);
}

Status AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) return system_error(path_, "write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return system_error(path_, "write");
  ::close(std::exchange(descriptor_, -1));
  // The rename itself must reach the disk too; a file system that cannot sync a folder has nothing to lose by it.
  const auto parent = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  const Descriptor folder(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) ::fsync(folder.get());
  return {};
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  if (auto status = file.value().append(bytes); !status) return status;
  return file.value().commit();
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto size = regular_size(file, path);
  if (!size) return size.error();
  if (size.value() == 0) return MappedFile(nullptr, 0);
  void* data = ::mmap(nullptr, size.value(), PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return system_error(path, "map");
  return MappedFile(static_cast<const char*>(data), size.value());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace thinpipe
