#include "base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;
using test::SmallDisk;

// Sets a variable of the environment for one test.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name); old != nullptr) old_ = old;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~ScopedVariable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(DataDir, FollowsTheEnvironmentInOrder) {
  const ScopedVariable home("HOME", "/home/x");
  const ScopedVariable xdg("XDG_DATA_HOME", nullptr);
  const ScopedVariable own("THINPIPE_DATA_DIR", nullptr);
  EXPECT_EQ(data_dir(), "/home/x/.local/share/thinpipe");
  const ScopedVariable xdg_set("XDG_DATA_HOME", "/xdg");
  EXPECT_EQ(data_dir(), "/xdg/thinpipe");
  const ScopedVariable own_set("THINPIPE_DATA_DIR", "/own");
  EXPECT_EQ(data_dir(), "/own");
}

TEST(DataDir, WithoutAnyVariableSaysWhatToSet) {
  const ScopedVariable home("HOME", nullptr);
  const ScopedVariable xdg("XDG_DATA_HOME", "");
  const ScopedVariable own("THINPIPE_DATA_DIR", "");
  EXPECT_THROW(data_dir(), UserError);
}

bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) >= 0; }

TEST(Fd, ClosesWhatItOwnsOnce) {
  const auto open_null = [] { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); };
  Fd one(open_null());
  ASSERT_TRUE(one);
  const int first = one.get();
  Fd other = std::move(one);
  EXPECT_FALSE(one);  // NOLINT(bugprone-use-after-move): moved from, it owns nothing
  EXPECT_EQ(other.get(), first);
  Fd third(open_null());
  const int second = third.get();
  other = std::move(third);
  EXPECT_FALSE(is_open(first));
  EXPECT_EQ(other.get(), second);
  errno = ENOENT;
  other.reset();
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(is_open(second));
}

TEST(ReadFile, GivesAllBytes) {
  const ScratchFolder folder;
  const std::string bytes("zero \0 and \xff", 12);
  ASSERT_TRUE(write_file_atomically(folder / "a", bytes).ok());
  EXPECT_EQ(read_file(folder / "a").value(), bytes);
}

TEST(ReadFile, NamesTheFileAndTheReason) {
  const ScratchFolder folder;
  EXPECT_EQ(read_file("/no/such/file").error().message, "cannot read /no/such/file: No such file or directory");
  EXPECT_EQ(read_file(folder.path()).error().message,
            fmt::format("cannot read {}: it is a folder, not a file", folder.path().string()));
  EXPECT_EQ(read_file("/dev/null").error().message, "cannot read /dev/null: it is not a regular file");
}

TEST(ReadFile, RefusesAPipeThatNobodyWritesToWithoutWaiting) {
  const ScratchFolder folder;
  const auto path = (folder / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto refusal = fmt::format("cannot read {}: it is not a regular file", path);
  EXPECT_EQ(read_file(path).error().message, refusal);
  EXPECT_EQ(read_private_file(path).error().message, refusal);
  EXPECT_EQ(MappedFile::open(path).error().message, refusal);
}

TEST(MakeDirectories, CreatesAllOfThemOnce) {
  const ScratchFolder folder;
  EXPECT_TRUE(make_directories(folder / "a/b/c").ok());
  EXPECT_TRUE(make_directories(folder / "a/b/c").ok());
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b/c"));
  ASSERT_TRUE(write_file_atomically(folder / "file", "").ok());
  EXPECT_EQ(make_directories(folder / "file/d").error().message,
            fmt::format("cannot create folder {0}/d: {0} exists and is not a folder", (folder / "file").string()));
  EXPECT_EQ(make_directories("/dev/null/a").error().message,
            "cannot create folder /dev/null/a: /dev/null exists and is not a folder");
}

TEST(AtomicFile, AppearsOnlyWithCommit) {
  const ScratchFolder folder;
  auto file = AtomicFile::create(folder / "a");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file.value().append("hello").ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  ASSERT_TRUE(file.value().commit().ok());
  EXPECT_EQ(read_file(folder / "a").value(), "hello");
  EXPECT_EQ(folder.file_count(), 1u);
}

TEST(AtomicFile, WithoutCommitLeavesTheOldFileAndNothingElse) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", "old").ok());
  {
    auto file = AtomicFile::create(folder / "a");
    ASSERT_TRUE(file.value().append("new").ok());
    const AtomicFile moved = std::move(file).take();  // moving must not remove it twice, or too early
    EXPECT_EQ(folder.file_count(), 2u);
  }
  EXPECT_EQ(read_file(folder / "a").value(), "old");
  EXPECT_EQ(folder.file_count(), 1u);
}

TEST(AtomicFile, ReplacesTheOldFile) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", "a long old text").ok());
  ASSERT_TRUE(write_file_atomically(folder / "a", "new").ok());
  EXPECT_EQ(read_file(folder / "a").value(), "new");
}

TEST(AtomicFile, WriteAtOverwritesAndAppendContinuesAtTheEnd) {
  const ScratchFolder folder;
  auto file = AtomicFile::create(folder / "a");
  ASSERT_TRUE(file.value().append("????body").ok());
  ASSERT_TRUE(file.value().write_at(0, "head").ok());
  ASSERT_TRUE(file.value().append("tail").ok());
  ASSERT_TRUE(file.value().commit().ok());
  EXPECT_EQ(read_file(folder / "a").value(), "headbodytail");
}

TEST(AtomicFile, IsReadableByAll) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", "x").ok());
  struct stat status {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
}

TEST(AtomicFile, IsReadableByItsOwnerAloneWhenPrivate) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", "old").ok());
  ASSERT_TRUE(write_file_atomically(folder / "a", "secret", FileMode::kPrivate).ok());
  struct stat status {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(read_private_file(folder / "a").value(), "secret");
}

TEST(ReadPrivateFile, RefusesAFileOthersMayAccessAndSaysHowToFixIt) {
  const ScratchFolder folder;
  const auto path = (folder / "a").string();
  ASSERT_TRUE(write_file_atomically(path, "secret", FileMode::kPrivate).ok());
  for (const mode_t bit : {0040, 0020, 0010, 0004, 0002, 0001}) {
    ASSERT_EQ(::chmod(path.c_str(), 0600 | bit), 0);
    const auto read = read_private_file(path);
    ASSERT_FALSE(read.ok()) << bit;
    EXPECT_NE(read.error().message.find("chmod 600 " + path), std::string::npos) << read.error().message;
  }
  EXPECT_EQ(read_private_file(folder / "none").error().message,
            "cannot read " + (folder / "none").string() + ": No such file or directory");
}

TEST(AtomicFile, NamesThePlaceThatCannotBeWritten) {
  const ScratchFolder folder;
  EXPECT_EQ(write_file_atomically("/no/such/folder/a", "x").error().message,
            "cannot write /no/such/folder/a: No such file or directory");
  ASSERT_TRUE(make_directories(folder / "taken").ok());
  EXPECT_FALSE(write_file_atomically(folder / "taken", "x").ok());
  EXPECT_EQ(folder.file_count(), 1u);
}

TEST(AtomicFile, RefusesToReplaceAPipeADeviceOrAFolder) {
  const ScratchFolder folder;
  const auto pipe = (folder / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", folder / "null");
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_EQ(write_file_atomically(pipe, "x").error().message, "cannot write " + pipe + ": it is a pipe, not a file");
  EXPECT_EQ(write_file_atomically(folder / "null", "x").error().message,
            "cannot write " + (folder / "null").string() + ": it is a device, not a file");
  EXPECT_EQ(write_file_atomically(folder.path(), "x").error().message,
            "cannot write " + folder.path().string() + ": it is a folder, not a file");
  EXPECT_NE(write_file_atomically(folder / "loop", "x").error().message.find("Too many levels of symbolic links"),
            std::string::npos);
  struct stat status {};
  ASSERT_EQ(::lstat(pipe.c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode));
  EXPECT_EQ(folder.file_count(), 3u);
}

TEST(AtomicFile, ReplacesTheFileBehindALinkAndKeepsTheLink) {
  const ScratchFolder folder;
  ASSERT_TRUE(make_directories(folder / "elsewhere").ok());
  std::filesystem::create_symlink("elsewhere/b", folder / "a");
  std::filesystem::create_symlink(folder / "elsewhere/c", folder / "elsewhere/b");
  for (const char* text : {"made", "replaced"}) {  // c is not there the first time
    ASSERT_TRUE(write_file_atomically(folder / "a", text).ok());
    EXPECT_TRUE(std::filesystem::is_symlink(folder / "a"));
    EXPECT_TRUE(std::filesystem::is_symlink(folder / "elsewhere/b"));
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / "elsewhere/c")));
    EXPECT_EQ(read_file(folder / "elsewhere/c").value(), text);
  }
}

// The name of the only file that is not `name`.
std::filesystem::path other_than(const std::string& name, const ScratchFolder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename() != name) return entry.path();
  }
  return {};
}

TEST(AtomicFile, RemovesRemainsOfAKilledWriterOfTheSameFile) {
  const ScratchFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    auto file = AtomicFile::create(folder / "a");
    (void)file.value().append("half");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto left = other_than("a", folder);
  ASSERT_TRUE(left.filename().string().starts_with("a.partial-")) << left;
  ASSERT_TRUE(write_file_atomically(folder / "b", "another").ok());
  EXPECT_TRUE(std::filesystem::exists(left)) << "it belongs to another file";
  ASSERT_TRUE(write_file_atomically(folder / "a", "whole").ok());
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_EQ(folder.file_count(), 2u);
}

TEST(AtomicFile, KeepsPartialFilesOfLivingWritersAndUnrelatedFiles) {
  const ScratchFolder folder;
  ASSERT_TRUE(make_directories(folder / "a.partial-folder").ok());
  std::filesystem::create_symlink("nothing", folder / "a.partial-linked");
  auto slow = AtomicFile::create(folder / "a");
  ASSERT_TRUE(slow.value().append("slow").ok());
  ASSERT_TRUE(write_file_atomically(folder / "a", "quick").ok());
  EXPECT_EQ(read_file(folder / "a").value(), "quick");
  ASSERT_TRUE(slow.value().commit().ok());
  EXPECT_EQ(read_file(folder / "a").value(), "slow");
  EXPECT_EQ(folder.file_count(), 3u);
}

TEST(AtomicFile, ConcurrentWritersOfOneFileDoNotRemoveEachOthersParts) {
  const ScratchFolder folder;
  std::vector<std::thread> writers;
  std::atomic<int> failed = 0;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] {
      for (int n = 0; n < 15; ++n) failed += !write_file_atomically(folder / "a", fmt::format("{} {}", i, n)).ok();
    });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(folder.file_count(), 1u);
}

TEST(AtomicFile, OnAFullDiskLeavesTheOldFileAndNothingElse) {
  const SmallDisk disk(64 << 10);
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  ASSERT_TRUE(write_file_atomically(disk.folder() / "a", "old").ok());
  const Status status = write_file_atomically(disk.folder() / "a", std::string(1 << 20, 'x'));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("No space left"), std::string::npos) << status.error().message;
  EXPECT_EQ(read_file(disk.folder() / "a").value(), "old");
  EXPECT_EQ(disk.folder().file_count(), 1u);
}

TEST(AtomicFolder, AppearsWithCommitOrLeavesNothing) {
  const ScratchFolder scratch;
  {
    const auto folder = AtomicFolder::create(scratch / "in/a/").take();
    EXPECT_EQ(folder.target(), scratch / "in/a");
    ASSERT_TRUE(write_file_atomically(folder.path() / "f", "1").ok());
    EXPECT_FALSE(std::filesystem::exists(scratch / "in/a"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "in"));
  auto folder = AtomicFolder::create(scratch / "in/a").take();
  ASSERT_TRUE(write_file_atomically(folder.path() / "f", "1").ok());
  ASSERT_TRUE(std::filesystem::create_directory(scratch / "in/a"));  // an empty folder may be in its place
  EXPECT_FALSE(folder.is_taken());
  ASSERT_TRUE(folder.commit().ok());
  EXPECT_EQ(read_file(scratch / "in/a/f").value(), "1");
  EXPECT_FALSE(std::filesystem::exists(scratch / "in/.a.partial"));
}

TEST(AtomicFolder, RemovesRemainsOfAKilledProcess) {
  const ScratchFolder scratch;
  ASSERT_TRUE(make_directories(scratch / ".a.partial/old").ok());
  auto folder = AtomicFolder::create(scratch / "a").take();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  ASSERT_TRUE(folder.commit().ok());
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "a"));
}

TEST(AtomicFolder, RemoveAbandonedSparesWhatIsBeingBuiltAndWhatIsNotHidden) {
  const ScratchFolder scratch;
  for (const char* name : {".left.partial/in", "whole.partial", ".whole"}) {
    ASSERT_TRUE(make_directories(scratch / name).ok());
  }
  const auto building = AtomicFolder::create(scratch / "building").take();
  AtomicFolder::remove_abandoned(scratch.path());
  EXPECT_FALSE(std::filesystem::exists(scratch / ".left.partial"));
  EXPECT_TRUE(std::filesystem::exists(building.path()));
  EXPECT_EQ(scratch.file_count(), 3u);
  AtomicFolder::remove_abandoned(scratch / "nowhere");
}

TEST(AtomicFolder, SaysOnceThatItWaits_AndFollowsTheNameToTheNextBuilder) {
  // While the second waits, the first leaves, taking its hidden folder with it, and a third builds under that name.
  const ScratchFolder scratch;
  auto first = std::make_unique<AtomicFolder>(AtomicFolder::create(scratch / "a", [] { FAIL(); }).take());
  std::unique_ptr<AtomicFolder> third;
  std::atomic<bool> third_left = false;
  std::thread helper;
  int waits = 0;
  const auto second = AtomicFolder::create(scratch / "a", [&] {
                        ++waits;
                        first.reset();
                        third = std::make_unique<AtomicFolder>(AtomicFolder::create(scratch / "a").take());
                        helper = std::thread([&] {
                          for (int i = 0; i < 100; ++i) std::this_thread::yield();
                          third_left = true;
                          third.reset();
                        });
                      }).take();
  EXPECT_TRUE(third_left);
  helper.join();
  EXPECT_EQ(waits, 1);
  EXPECT_TRUE(std::filesystem::exists(second.path()));
}

TEST(AtomicFolder, RefusesToReplaceAFolderThatIsNotEmpty) {
  const ScratchFolder scratch;
  ASSERT_TRUE(make_directories(scratch / "a").ok());
  ASSERT_TRUE(write_file_atomically(scratch / "a/kept", "1").ok());
  {
    auto folder = AtomicFolder::create(scratch / "a").take();
    EXPECT_TRUE(folder.is_taken());
    EXPECT_FALSE(folder.commit().ok());
  }
  EXPECT_EQ(read_file(scratch / "a/kept").value(), "1");
  EXPECT_EQ(scratch.file_count(), 1u);
  EXPECT_FALSE(std::filesystem::exists(scratch / ".a.partial"));
}

TEST(AtomicFolder, CreateNewTakesTheNextFreeName) {
  const ScratchFolder scratch;
  auto first = AtomicFolder::create_new(scratch.path(), "run").take();
  const auto second = AtomicFolder::create_new(scratch.path(), "run").take();
  EXPECT_EQ(first.target(), scratch / "run");
  EXPECT_EQ(second.target(), scratch / "run-2") << "the first is being built";
  ASSERT_TRUE(first.commit().ok());
  EXPECT_EQ(AtomicFolder::create_new(scratch.path(), "run").value().target(), scratch / "run-3");
}

TEST(AtomicFolder, ConcurrentBuildersWaitForEachOther) {
  const ScratchFolder scratch;
  std::atomic<int> committed = 0, building = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      auto folder = AtomicFolder::create(scratch / "a").take();
      EXPECT_EQ(++building, 1);
      const bool is_first = !folder.is_taken();
      EXPECT_TRUE(write_file_atomically(folder.path() / "f", "1").ok());
      --building;
      if (is_first && folder.commit().ok()) ++committed;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(committed, 1);
  EXPECT_EQ(scratch.file_count(), 1u);
}

TEST(MappedFile, ShowsTheBytesAndOutlivesMovesAndTheName) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", "mapped").ok());
  ASSERT_TRUE(write_file_atomically(folder / "b", "other").ok());
  MappedFile mapped = MappedFile::open(folder / "a").take();
  EXPECT_EQ(mapped.bytes(), "mapped");
  MappedFile other = MappedFile::open(folder / "b").take();
  other = std::move(mapped);
  std::filesystem::remove(folder / "a");
  EXPECT_EQ(other.bytes(), "mapped");
}

// The part of this process's memory that mapped files take.
uint64_t mapped_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stoull(line.substr(8));
  }
  return 0;
}

TEST(MappedFile, ForgetGivesTheMemoryBackAndKeepsTheBytes) {
  const ScratchFolder folder;
  std::string bytes(32 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 4096);
  write_file_atomically(folder / "a", bytes).take();
  const auto mapped = MappedFile::open(folder / "a").take();
  ASSERT_EQ(mapped.bytes(), bytes);  // reads all of it
  const uint64_t before = mapped_kib();
  mapped.forget(mapped.bytes().substr(100, bytes.size() - 200));
  EXPECT_LT(mapped_kib() + (30 << 10), before);
  for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 0}, {5, 1}, {4096, 4096}, {bytes.size(), 0}}) {
    mapped.forget(mapped.bytes().substr(first, count));
  }
  EXPECT_EQ(mapped.bytes(), bytes);
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", "").ok());
  EXPECT_EQ(MappedFile::open(folder / "a").value().bytes().size(), 0u);
}

TEST(MappedFile, RefusesAFolderAndAMissingFile) {
  EXPECT_EQ(MappedFile::open("/no/such/file").error().message, "cannot read /no/such/file: No such file or directory");
  EXPECT_EQ(MappedFile::open("/").error().message, "cannot read /: it is a folder, not a file");
}

}  // namespace
}  // namespace thinpipe
