#include "cluster/run_store.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <ctime>
#include <limits>
#include <utility>
#include <variant>

namespace thinpipe {
namespace {

constexpr int kVersion = 1;

constexpr const char* kTables = R"(
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS roster (stage INTEGER PRIMARY KEY, peer TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS commits (step INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, apply INTEGER NOT NULL,
  grad_factor REAL, squared_norm REAL, loss REAL, basis_version INTEGER NOT NULL, metrics TEXT NOT NULL,
  timing TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS evaluations (step INTEGER PRIMARY KEY, loss REAL, is_final INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, kind TEXT NOT NULL,
  text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS invites (id TEXT PRIMARY KEY, token_sha256 TEXT NOT NULL, expires INTEGER NOT NULL,
  uses_left INTEGER NOT NULL, revoked INTEGER NOT NULL, note TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS peers (peer TEXT PRIMARY KEY, invite TEXT NOT NULL, request_sha256 TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS revoked (peer TEXT PRIMARY KEY);
)";

// A number that SQLite would store as NULL (NaN) comes back as NaN.
using Value = std::variant<int64_t, double, std::string>;

// One prepared statement; bound, stepped through and gone.
class Statement {
 public:
  Statement(sqlite3* database, const char* text, const std::vector<Value>& values) : database_(database) {
    if (sqlite3_prepare_v2(database, text, -1, &statement_, nullptr) != SQLITE_OK) return;
    for (size_t i = 0; i < values.size(); ++i) {
      const int place = static_cast<int>(i) + 1;
      if (const auto* whole = std::get_if<int64_t>(&values[i])) sqlite3_bind_int64(statement_, place, *whole);
      if (const auto* number = std::get_if<double>(&values[i])) sqlite3_bind_double(statement_, place, *number);
      if (const auto* text_value = std::get_if<std::string>(&values[i])) {
        sqlite3_bind_text(statement_, place, text_value->data(), static_cast<int>(text_value->size()),
                          SQLITE_TRANSIENT);
      }
    }
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // A row is there. Once it is not, failed() tells why not.
  bool step() {
    code_ = statement_ != nullptr ? sqlite3_step(statement_) : sqlite3_errcode(database_);
    return code_ == SQLITE_ROW;
  }
  bool failed() const { return code_ != SQLITE_DONE; }
  int64_t whole(int column) const { return sqlite3_column_int64(statement_, column); }
  double number(int column) const {
    if (sqlite3_column_type(statement_, column) == SQLITE_NULL) return std::numeric_limits<double>::quiet_NaN();
    return sqlite3_column_double(statement_, column);
  }
  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return bytes == nullptr ? "" : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
  }

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_DONE;
};

Error trouble(const std::filesystem::path& path, sqlite3* database) {
  return Error{fmt::format("{}: {}", path.string(), sqlite3_errmsg(database))};
}

// Whoever has the file open has it alone, and any first touch may be the one that finds out.
Error opening_trouble(const std::filesystem::path& path, sqlite3* database) {
  if (sqlite3_errcode(database) != SQLITE_BUSY) return trouble(path, database);
  return Error{fmt::format("{}: another process serves this run", path.string())};
}

Status execute(const std::filesystem::path& path, sqlite3* database, const char* text,
               const std::vector<Value>& values) {
  Statement statement(database, text, values);
  while (statement.step()) {
  }
  return statement.failed() ? Status(trouble(path, database)) : Status();
}

}  // namespace

std::string new_run_id() { return random_hex(16); }

Result<RunStore> RunStore::open(const std::filesystem::path& path) {
  sqlite3* database = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  RunStore store(path, database);
  if (code != SQLITE_OK) return trouble(path, database);
  // FULL: a commit is on the disk before anybody is told of it. EXCLUSIVE: one coordinator at a time.
  for (const char* text :
       {"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"}) {
    if (auto status = execute(path, database, text, {}); !status) return opening_trouble(path, database);
  }
  if (sqlite3_exec(database, kTables, nullptr, nullptr, nullptr) != SQLITE_OK) return opening_trouble(path, database);
  const auto version = store.get("version");
  if (!version) return version.error();
  if (!version.value()) {
    if (auto status = store.set("version", fmt::format("{}", kVersion)); !status) return status.error();
  } else if (*version.value() != fmt::format("{}", kVersion)) {
    return Error{
        fmt::format("{}: is of version {}, this thinpipe reads {}", path.string(), *version.value(), kVersion)};
  }
  return store;
}

RunStore::~RunStore() { sqlite3_close(database_); }
RunStore::RunStore(RunStore&& other) noexcept
    : path_(std::move(other.path_)), database_(std::exchange(other.database_, nullptr)) {}

Status RunStore::set(const std::string& name, const std::string& value) {
  return execute(path_, database_, "INSERT OR REPLACE INTO facts VALUES (?, ?)", {name, value});
}

Result<std::optional<std::string>> RunStore::get(const std::string& name) const {
  Statement statement(database_, "SELECT value FROM facts WHERE name = ?", {name});
  if (statement.step()) return std::optional(statement.text(0));
  if (statement.failed()) return trouble(path_, database_);
  return std::optional<std::string>();
}

Status RunStore::in_transaction(const std::function<Status()>& change) {
  if (auto status = execute(path_, database_, "BEGIN IMMEDIATE", {}); !status) return status;
  if (auto status = change(); !status) {
    (void)execute(path_, database_, "ROLLBACK", {});
    return status;
  }
  return execute(path_, database_, "COMMIT", {});
}

Status RunStore::set_epoch(const PersistEpoch& epoch) {
  const auto run = [&](const char* text, const std::vector<Value>& values) {
    return execute(path_, database_, text, values);
  };
  return in_transaction([&]() -> Status {
    if (auto status = set("epoch", fmt::format("{}", epoch.epoch)); !status) return status;
    if (auto status = set("generation", fmt::format("{}", epoch.generation)); !status) return status;
    if (auto status = run("DELETE FROM roster", {}); !status) return status;
    for (size_t stage = 0; stage < epoch.roster.size(); ++stage) {
      auto status = run("INSERT INTO roster VALUES (?, ?)", {static_cast<int64_t>(stage), epoch.roster[stage]});
      if (!status) return status;
    }
    if (epoch.drop_from < 0) return {};
    if (auto status = run("DELETE FROM commits WHERE step >= ?", {epoch.drop_from}); !status) return status;
    return run("DELETE FROM evaluations WHERE step > ? OR is_final", {epoch.drop_from});
  });
}

Result<std::vector<std::string>> RunStore::roster() const {
  std::vector<std::string> peers;
  Statement statement(database_, "SELECT peer FROM roster ORDER BY stage", {});
  while (statement.step()) peers.push_back(statement.text(0));
  if (statement.failed()) return trouble(path_, database_);
  return peers;
}

Status RunStore::add_commit(const CommitRow& row) {
  return execute(path_, database_, "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                 {row.step, static_cast<int64_t>(row.epoch), int64_t{row.apply}, row.grad_factor, row.squared_norm,
                  row.loss, row.basis_version, row.metrics, row.timing});
}

Result<std::vector<CommitRow>> RunStore::commits(int64_t from) const {
  std::vector<CommitRow> rows;
  Statement statement(database_,
                      "SELECT step, epoch, apply, grad_factor, squared_norm, loss, basis_version, metrics, timing "
                      "FROM commits WHERE step >= ? ORDER BY step",
                      {from});
  while (statement.step()) {
    rows.push_back({statement.whole(0), static_cast<uint64_t>(statement.whole(1)), statement.whole(2) != 0,
                    statement.number(3), statement.number(4), statement.number(5), statement.whole(6),
                    statement.text(7), statement.text(8)});
  }
  if (statement.failed()) return trouble(path_, database_);
  return rows;
}

Status RunStore::add_evaluation(const EvaluationRow& row) {
  return execute(path_, database_, "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?)",
                 {row.step, row.loss, int64_t{row.is_final}});
}

Result<std::vector<EvaluationRow>> RunStore::evaluations() const {
  std::vector<EvaluationRow> rows;
  Statement statement(database_, "SELECT step, loss, is_final FROM evaluations ORDER BY step", {});
  while (statement.step()) rows.push_back({statement.whole(0), statement.number(1), statement.whole(2) != 0});
  if (statement.failed()) return trouble(path_, database_);
  return rows;
}

Status RunStore::put_invite(const InviteRecord& invite) {
  const auto expires = std::chrono::duration_cast<std::chrono::seconds>(invite.expires.time_since_epoch()).count();
  return execute(path_, database_, "INSERT OR REPLACE INTO invites VALUES (?, ?, ?, ?, ?, ?)",
                 {invite.id, invite.token_sha256, static_cast<int64_t>(expires), invite.uses_left,
                  int64_t{invite.revoked}, invite.note});
}

Result<std::vector<InviteRecord>> RunStore::invites() const {
  std::vector<InviteRecord> rows;
  Statement statement(database_,
                      "SELECT id, token_sha256, expires, uses_left, revoked, note FROM invites ORDER BY rowid", {});
  while (statement.step()) {
    InviteRecord row;
    row.id = statement.text(0);
    row.token_sha256 = statement.text(1);
    row.expires = WallTime(std::chrono::seconds(statement.whole(2)));
    row.uses_left = statement.whole(3);
    row.revoked = statement.whole(4) != 0;
    row.note = statement.text(5);
    rows.push_back(std::move(row));
  }
  if (statement.failed()) return trouble(path_, database_);
  return rows;
}

Status RunStore::enrol(const PeerRow& peer) {
  return in_transaction([&]() -> Status {
    auto status = execute(path_, database_,
                          "UPDATE invites SET uses_left = uses_left - 1 WHERE id = ? AND uses_left > 0", {peer.invite});
    if (!status) return status;
    if (sqlite3_changes(database_) != 1) return Error{"the invite has no use left"};
    return execute(path_, database_, "INSERT INTO peers VALUES (?, ?, ?)",
                   {peer.peer, peer.invite, peer.request_sha256});
  });
}

Result<std::optional<PeerRow>> RunStore::peer_with_key(const std::string& request_sha256) const {
  Statement statement(database_, "SELECT peer, invite, request_sha256 FROM peers WHERE request_sha256 = ?",
                      {request_sha256});
  if (statement.step()) return std::optional(PeerRow{statement.text(0), statement.text(1), statement.text(2)});
  if (statement.failed()) return trouble(path_, database_);
  return std::optional<PeerRow>();
}

Result<bool> RunStore::has_peer(const std::string& peer) const {
  Statement statement(database_, "SELECT 1 FROM peers WHERE peer = ?", {peer});
  if (statement.step()) return true;
  if (statement.failed()) return trouble(path_, database_);
  return false;
}

Status RunStore::revoke_peer(const std::string& peer) {
  return execute(path_, database_, "INSERT OR REPLACE INTO revoked VALUES (?)", {peer});
}

Result<std::vector<std::string>> RunStore::revoked_peers() const {
  std::vector<std::string> peers;
  Statement statement(database_, "SELECT peer FROM revoked ORDER BY peer", {});
  while (statement.step()) peers.push_back(statement.text(0));
  if (statement.failed()) return trouble(path_, database_);
  return peers;
}

Result<EventRow> RunStore::add_event(const std::string& kind, const std::string& text) {
  EventRow row{0, fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))), kind, text};
  auto status = execute(path_, database_, "INSERT INTO events (time, kind, text) VALUES (?, ?, ?)",
                        {row.time, row.kind, row.text});
  if (!status) return status.error();
  row.number = sqlite3_last_insert_rowid(database_);
  return row;
}

Result<std::vector<EventRow>> RunStore::events(int64_t after, int64_t most) const {
  std::vector<EventRow> rows;
  Statement statement(
      database_,
      "SELECT number, time, kind, text FROM (SELECT * FROM events WHERE number > ? ORDER BY number DESC "
      "LIMIT ?) ORDER BY number",
      {after, most});
  while (statement.step()) {
    rows.push_back({statement.whole(0), statement.text(1), statement.text(2), statement.text(3)});
  }
  if (statement.failed()) return trouble(path_, database_);
  return rows;
}

}  // namespace thinpipe
