#include "run/event_rows.h"

#include <sqlite3.h>

#include <algorithm>
#include <memory>
#include <string>

namespace thinpipe {

std::vector<control::EventLine> stored_events(const std::filesystem::path& run_folder, int64_t after, int64_t most) {
  sqlite3* opened = nullptr;
  const int status = sqlite3_open_v2((run_folder / "run.sqlite").c_str(), &opened, SQLITE_OPEN_READONLY, nullptr);
  const std::unique_ptr<sqlite3, int (*)(sqlite3*)> database(opened, sqlite3_close);
  if (status != SQLITE_OK) return {};
  // As RunStore writes them.
  sqlite3_stmt* prepared = nullptr;
  const char* text = "SELECT number, time, kind, text FROM events WHERE number > ? ORDER BY number DESC LIMIT ?";
  if (sqlite3_prepare_v2(opened, text, -1, &prepared, nullptr) != SQLITE_OK) return {};
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(prepared, sqlite3_finalize);
  sqlite3_bind_int64(prepared, 1, after);
  sqlite3_bind_int64(prepared, 2, most);
  std::vector<control::EventLine> events;
  while (sqlite3_step(prepared) == SQLITE_ROW) {
    const auto column = [&](int i) {
      const auto* bytes = sqlite3_column_text(prepared, i);
      return bytes == nullptr ? std::string() : reinterpret_cast<const char*>(bytes);
    };
    auto& event = events.emplace_back();
    event.set_number(sqlite3_column_int64(prepared, 0));
    event.set_time(column(1));
    event.set_kind(column(2));
    event.set_text(column(3));
  }
  std::reverse(events.begin(), events.end());
  return events;
}

}  // namespace thinpipe
