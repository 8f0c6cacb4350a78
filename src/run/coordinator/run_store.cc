#include "run/coordinator/run_store.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <ctime>
#include <limits>
#include <utility>
#include <variant>

#include "net/certificates.h"
#include "run/core/coordinator_core.h"

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

// SQLite stores NaN as NULL; it comes back as NaN.
using Value = std::variant<int64_t, double, std::string>;

// One prepared statement, used once.
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

  // Returns whether there is a row. If not, failed() says whether that is an error.
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

// Returns every row that the statement finds, converted by `read`.
template <class Read>
auto select(const std::filesystem::path& path, sqlite3* database, const char* text, const std::vector<Value>& values,
            Read read) -> Result<std::vector<decltype(read(std::declval<const Statement&>()))>> {
  std::vector<decltype(read(std::declval<const Statement&>()))> rows;
  Statement statement(database, text, values);
  while (statement.step()) rows.push_back(read(statement));
  if (statement.failed()) return trouble(path, database);
  return rows;
}

std::string first_text(const Statement& row) { return row.text(0); }

// Only one process may have the file open. Any of the first calls may be the one that notices another process.
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
  // FULL: a commit is on the disk before it is sent. EXCLUSIVE: one coordinator at a time.
  for (const char* text :
       {"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"}) {
    if (auto status = execute(path, database, text, {}); !status) return opening_trouble(path, database);
  }
  if (sqlite3_exec(database, kTables, nullptr, nullptr, nullptr) != SQLITE_OK) return opening_trouble(path, database);
  const auto version = TRY(store.get("version"));
  if (!version) {
    TRY(store.set("version", fmt::format("{}", kVersion)));
  } else if (*version != fmt::format("{}", kVersion)) {
    return Error{fmt::format("{}: is of version {}, this thinpipe reads {}", path.string(), *version, kVersion)};
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
  const auto found = TRY(select(path_, database_, "SELECT value FROM facts WHERE name = ?", {name}, first_text));
  return found.empty() ? std::optional<std::string>() : found.front();
}

Status RunStore::in_transaction(const std::function<Status()>& change) {
  TRY(execute(path_, database_, "BEGIN IMMEDIATE", {}));
  if (auto status = change(); !status) {
    (void)execute(path_, database_, "ROLLBACK", {});
    return status;
  }
  return execute(path_, database_, "COMMIT", {});
}

Result<StoredRun> RunStore::load() const {
  const auto number = [&](const char* name) -> Result<uint64_t> {
    const auto text = TRY(get(name));
    return text ? std::stoull(*text) : uint64_t{0};
  };
  const auto epoch = TRY(number("epoch")), generation = TRY(number("generation")), paused = TRY(number("paused"));
  const auto state_revision = TRY(number("state_revision"));
  auto holders = TRY(roster());
  const auto revoked = TRY(select(path_, database_, "SELECT peer FROM revoked", {}, first_text));
  const auto rows = TRY(commits());
  const auto evaluated = TRY(evaluations());
  StoredRun stored{.paused = paused != 0, .roster = std::move(holders), .revoked = {revoked.begin(), revoked.end()}};
  auto& steps = stored.steps;
  steps.epoch = epoch;
  steps.generation = generation;
  steps.state_revision = state_revision;
  steps.committed = static_cast<int64_t>(rows.size());
  for (const auto& row : rows) {
    if (!row.apply) steps.skipped.insert(row.step);
  }
  if (!rows.empty()) {
    steps.last_commit = rows.back();
    steps.last_commit->revision = state_revision;
  }
  for (const auto& evaluation : evaluated) {
    steps.evaluations.insert(evaluation.step);
    if (evaluation.is_final) steps.final_loss = evaluation.loss;
  }
  return stored;
}

Status RunStore::set_epoch(const PersistEpoch& epoch) {
  const auto run = [&](const char* text, const std::vector<Value>& values) {
    return execute(path_, database_, text, values);
  };
  return in_transaction([&]() -> Status {
    TRY(set("epoch", fmt::format("{}", epoch.epoch)));
    TRY(set("generation", fmt::format("{}", epoch.generation)));
    TRY(set("state_revision", fmt::format("{}", epoch.state_revision)));
    TRY(run("DELETE FROM roster", {}));
    for (size_t stage = 0; stage < epoch.roster.size(); ++stage) {
      TRY(run("INSERT INTO roster VALUES (?, ?)", {static_cast<int64_t>(stage), epoch.roster[stage]}));
    }
    if (epoch.drop_from < 0) return {};
    TRY(run("DELETE FROM commits WHERE step >= ?", {epoch.drop_from}));
    return run("DELETE FROM evaluations WHERE step > ? OR is_final", {epoch.drop_from});
  });
}

Result<uint64_t> RunStore::forget_holders() {
  const auto known = TRY(get("epoch"));
  const uint64_t epoch = (known ? std::stoull(*known) : 0) + 1;
  TRY(set_epoch({epoch, epoch, -1, {}}));
  return epoch;
}

Result<std::vector<std::string>> RunStore::roster() const {
  return select(path_, database_, "SELECT peer FROM roster ORDER BY stage", {}, first_text);
}

Status RunStore::add_commit(const CommitRow& row) {
  return in_transaction([&]() -> Status {
    TRY(set("state_revision", fmt::format("{}", row.revision)));
    return execute(path_, database_, "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   {row.step, static_cast<int64_t>(row.epoch), int64_t{row.apply}, row.grad_factor, row.squared_norm,
                    row.loss, row.basis_version, row.metrics, row.timing});
  });
}

Result<std::vector<CommitRow>> RunStore::commits(int64_t from) const {
  return select(path_, database_,
                "SELECT step, epoch, apply, grad_factor, squared_norm, loss, basis_version, metrics, timing "
                "FROM commits WHERE step >= ? ORDER BY step",
                {from}, [](const Statement& row) {
                  return CommitRow{.step = row.whole(0),
                                   .epoch = static_cast<uint64_t>(row.whole(1)),
                                   .apply = row.whole(2) != 0,
                                   .grad_factor = row.number(3),
                                   .squared_norm = row.number(4),
                                   .loss = row.number(5),
                                   .basis_version = row.whole(6),
                                   .metrics = row.text(7),
                                   .timing = row.text(8)};
                });
}

Status RunStore::add_evaluation(const PersistEvaluation& evaluation) {
  return execute(path_, database_, "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?)",
                 {evaluation.step, evaluation.loss, int64_t{evaluation.is_final}});
}

Result<std::vector<PersistEvaluation>> RunStore::evaluations() const {
  return select(path_, database_, "SELECT step, loss, is_final FROM evaluations ORDER BY step", {},
                [](const Statement& row) {
                  return PersistEvaluation{row.whole(0), row.number(1), row.whole(2) != 0};
                });
}

Status RunStore::forget_end() { return execute(path_, database_, "DELETE FROM evaluations WHERE is_final", {}); }

Status RunStore::put_invite(const InviteRecord& invite) {
  const auto expires = std::chrono::duration_cast<std::chrono::seconds>(invite.expires.time_since_epoch()).count();
  return execute(path_, database_, "INSERT OR REPLACE INTO invites VALUES (?, ?, ?, ?, ?, ?)",
                 {invite.id, invite.token_sha256, static_cast<int64_t>(expires), invite.uses_left,
                  int64_t{invite.revoked}, invite.note});
}

Result<std::vector<InviteRecord>> RunStore::invites() const {
  return select(path_, database_,
                "SELECT id, token_sha256, expires, uses_left, revoked, note FROM invites ORDER BY rowid", {},
                [](const Statement& row) {
                  InviteRecord invite;
                  invite.id = row.text(0);
                  invite.token_sha256 = row.text(1);
                  invite.expires = WallTime(std::chrono::seconds(row.whole(2)));
                  invite.uses_left = row.whole(3);
                  invite.revoked = row.whole(4) != 0;
                  invite.note = row.text(5);
                  return invite;
                });
}

Status RunStore::enrol(const PeerRow& peer) {
  return in_transaction([&]() -> Status {
    TRY(execute(path_, database_, "UPDATE invites SET uses_left = uses_left - 1 WHERE id = ? AND uses_left > 0",
                {peer.invite}));
    if (sqlite3_changes(database_) != 1) return Error{"the invite has no use left"};
    return execute(path_, database_, "INSERT INTO peers VALUES (?, ?, ?)",
                   {peer.peer, peer.invite, peer.request_sha256});
  });
}

Result<std::optional<PeerRow>> RunStore::peer_with_key(const std::string& request_sha256) const {
  return peer_where("request_sha256 = ?", request_sha256);
}

Result<std::optional<PeerRow>> RunStore::peer_named(const std::string& peer) const {
  return peer_where("peer = ?", peer);
}

Result<std::optional<PeerRow>> RunStore::peer_where(const std::string& condition, const std::string& value) const {
  const auto text = "SELECT peer, invite, request_sha256 FROM peers WHERE " + condition;
  const auto found = TRY(select(path_, database_, text.c_str(), {value}, [](const Statement& row) {
    return PeerRow{row.text(0), row.text(1), row.text(2)};
  }));
  return found.empty() ? std::optional<PeerRow>() : found.front();
}

Status RunStore::revoke_peer(const std::string& peer) {
  return execute(path_, database_, "INSERT OR REPLACE INTO revoked VALUES (?)", {peer});
}

Status RunStore::pardon_peer(const std::string& peer) {
  return execute(path_, database_, "DELETE FROM revoked WHERE peer = ?", {peer});
}

Result<std::vector<std::string>> RunStore::peers() const {
  return select(path_, database_, "SELECT peer FROM peers", {}, first_text);
}

Status RunStore::add_event(const std::string& kind, const std::string& text) {
  return execute(path_, database_, "INSERT INTO events (time, kind, text) VALUES (?, ?, ?)",
                 {fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))), kind, text});
}

Result<std::vector<control::EventLine>> RunStore::events(int64_t after, int64_t most) const {
  return select(path_, database_,
                "SELECT number, time, kind, text FROM (SELECT * FROM events WHERE number > ? ORDER BY number DESC "
                "LIMIT ?) ORDER BY number",
                {after, most}, [](const Statement& row) {
                  control::EventLine event;
                  event.set_number(row.whole(0));
                  event.set_time(row.text(1));
                  event.set_kind(row.text(2));
                  event.set_text(row.text(3));
                  return event;
                });
}

}  // namespace thinpipe
