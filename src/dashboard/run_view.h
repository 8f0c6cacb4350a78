// One run as the dashboard shows it: its folder, and its coordinator's status if it is served. All answers of the API
// come from here (docs/api.md). Works for runs that are over, too. Safe for use by several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "config/run_config.h"
#include "dashboard/history.h"
#include "proto/control.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

class RunView {
 public:
  // The folder of a run. Throws UserError if its config cannot be read.
  explicit RunView(std::filesystem::path folder);

  // Reads what is new and asks the coordinator. Returns whether there may be more at once. One thread at a time.
  bool refresh();

  nlohmann::json run() const;
  nlohmann::json status() const;
  nlohmann::json steps(int64_t from, int64_t to, int64_t points) const;
  nlohmann::json events(int64_t after) const;
  // Prometheus text.
  std::string metrics() const;
  // Asks the coordinator to pause or to go on; returns what it said.
  Result<std::string> control(control::ControlRequest::What what);

 private:
  enum class Answer { kNone, kGood, kFailed };  // of the coordinator: nobody serves the run, or it does not answer

  std::string state() const;
  void ask();
  void add_events(const google::protobuf::RepeatedPtrField<control::EventLine>& events);

  const std::filesystem::path folder_;
  const RunConfig config_;
  std::mutex asking_;  // of the line
  std::unique_ptr<CoordinatorLine> line_;
  std::string line_address_;

  mutable std::mutex mutex_;  // of all below
  RunHistory history_;
  control::RunStatus status_;
  Answer answer_ = Answer::kNone;
  nlohmann::json events_ = nlohmann::json::array();
};

}  // namespace thinpipe
