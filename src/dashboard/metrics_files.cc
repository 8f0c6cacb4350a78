#include "dashboard/metrics_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "base/files.h"
#include "base/result.h"

namespace thinpipe {
namespace {

// The columns after the step, and the tag of each in TensorBoard.
struct Column {
  const char* name;
  const char* tag;
};
constexpr std::array kColumns{Column{"loss", "loss/train"},
                              Column{"validation_loss", "loss/validation"},
                              Column{"final_validation_loss", "loss/final_validation"},
                              Column{"lr", "optim/lr"},
                              Column{"grad_norm", "optim/grad_norm"},
                              Column{"skipped", "optim/skipped"},
                              Column{"tokens", "run/tokens"},
                              Column{"bytes_forward", "bytes/forward"},
                              Column{"bytes_backward", "bytes/backward"},
                              Column{"socket_bytes", "bytes/socket"},
                              Column{"seconds", "run/seconds"},
                              Column{"step_seconds", "time/step_seconds"},
                              Column{"wait_share", "time/wait_share"}};

using Row = std::map<std::string, double>;  // by column
using Rows = std::map<int64_t, Row>;        // by step

double plain_number(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

template <class Take>
void for_each_step(const std::filesystem::path& file, const Take& take) {
  const auto text = read_file(file);
  std::istringstream lines(text ? text.value() : "");
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer()) {
      take(json["step"].get<int64_t>(), json);
    }
  }
}

void fill_row(Row& row, const nlohmann::json& line) {
  for (const auto& column : kColumns) {
    if (line.contains(column.name)) row[column.name] = plain_number(line[column.name]);
  }
  if (!line.contains("bytes") || !line["bytes"].is_array()) return;
  for (const auto& cut : line["bytes"]) {
    if (!cut.is_object()) continue;
    for (const char* way : {"forward", "backward"}) {
      if (cut.contains(way)) row[fmt::format("bytes_{}", way)] += plain_number(cut[way]);
    }
  }
}

// The share of the stages' time in which they waited for messages.
std::optional<double> wait_share_of(const nlohmann::json& line) {
  double wait = 0, total = 0;
  if (!line.contains("stages") || !line["stages"].is_array()) return std::nullopt;
  for (const auto& stage : line["stages"]) {
    if (!stage.is_object() || !stage.contains("wait_s") || !stage.contains("total_s")) return std::nullopt;
    wait += plain_number(stage["wait_s"]);
    total += plain_number(stage["total_s"]);
  }
  return total > 0 ? std::optional(wait / total) : std::nullopt;
}

Rows rows_of(const std::filesystem::path& run_folder) {
  Rows rows;
  for_each_step(run_folder / "metrics.jsonl",
                [&](int64_t step, const nlohmann::json& line) { fill_row(rows[step], line); });
  if (rows.empty()) throw UserError(fmt::format("{}: this run has made no step yet", run_folder.string()));
  // The clock of timing.jsonl starts at 0 with every coordinator; here it goes on.
  double before = 0, last = 0;
  for_each_step(run_folder / "timing.jsonl", [&](int64_t step, const nlohmann::json& line) {
    const auto found = rows.find(step);
    if (!line.contains("seconds") || !line["seconds"].is_number()) return;
    const auto here = line["seconds"].get<double>();
    if (here < last) before += std::exchange(last, 0);
    if (found != rows.end()) {
      found->second["seconds"] = before + here;
      found->second["step_seconds"] = here - last;
    }
    last = here;
    if (found == rows.end()) return;
    if (line.contains("socket_bytes")) found->second["socket_bytes"] = plain_number(line["socket_bytes"]);
    if (const auto share = wait_share_of(line)) found->second["wait_share"] = *share;
  });
  return rows;
}

// ---- protobuf's wire format, as far as it is needed: a library for four fields would be more code ----

std::string little_endian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text + static_cast<char>(value);
}

constexpr int kVarint = 0, kEightBytes = 1, kLength = 2, kFourBytes = 5;
std::string tag(int field, int type) { return varint(static_cast<uint64_t>(field << 3 | type)); }
std::string text_field(int field, const std::string& text) { return tag(field, kLength) + varint(text.size()) + text; }

// tensorboard.Event: wall_time = 1, step = 2, file_version = 3, summary = 5.
std::string event_head(double wall_time_s, int64_t step) {
  return tag(1, kEightBytes) + little_endian(std::bit_cast<uint64_t>(wall_time_s), 8) + tag(2, kVarint) +
         varint(static_cast<uint64_t>(step));
}

// tensorboard.Summary.Value: tag = 1, simple_value = 2.
std::string scalar(const std::string& name, double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return text_field(1, text_field(1, name) + tag(2, kFourBytes) + little_endian(bits, 4));
}

std::string record(const std::string& message) {
  const auto length = little_endian(message.size(), 8);
  return length + little_endian(masked(crc32c(length)), 4) + message + little_endian(masked(crc32c(message)), 4);
}

// TensorBoard orders runs by time; metrics.jsonl holds none, so that of the last write stands for the end of the run.
double end_of(const std::filesystem::path& run_folder) {
  std::error_code code;
  const auto time = std::filesystem::last_write_time(run_folder / "metrics.jsonl", code);
  if (code) return 0;
  return std::chrono::duration<double>(std::chrono::file_clock::to_sys(time).time_since_epoch()).count();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
  static const auto table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < entries.size(); ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
      entries[i] = crc;
    }
    return entries;
  }();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8; }

std::string metrics_csv(const std::filesystem::path& run_folder) {
  const auto rows = rows_of(run_folder);
  std::string text = "step";
  for (const auto& column : kColumns) text += fmt::format(",{}", column.name);
  text += "\n";
  for (const auto& [step, row] : rows) {
    text += fmt::format("{}", step);
    for (const auto& column : kColumns) {
      const auto found = row.find(column.name);
      text += found == row.end() ? "," : fmt::format(",{}", found->second);
    }
    text += "\n";
  }
  return text;
}

std::string metrics_events(const std::filesystem::path& run_folder) {
  const auto rows = rows_of(run_folder);
  double length_s = 0;
  for (const auto& [step, row] : rows) {
    if (const auto found = row.find("seconds"); found != row.end()) length_s = std::max(length_s, found->second);
  }
  const double begin_s = end_of(run_folder) - length_s;
  auto text = record(event_head(begin_s, 0) + text_field(3, "brain.Event:2"));
  double now_s = begin_s;
  for (const auto& [step, row] : rows) {
    if (const auto found = row.find("seconds"); found != row.end()) now_s = begin_s + found->second;
    std::string values;
    for (const auto& column : kColumns) {
      if (const auto found = row.find(column.name); found != row.end()) values += scalar(column.tag, found->second);
    }
    text += record(event_head(now_s, step) + text_field(5, values));
  }
  return text;
}

}  // namespace thinpipe
