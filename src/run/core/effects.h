// What the coordinator's core wants done. The core decides; the service carries the effects out in order. A durable
// effect is on the disk before the next one begins, so a commit is never sent before it is written.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "pipeline/step.h"
#include "proto/control.pb.h"

namespace thinpipe {

// A worker's Attend stream, numbered by the service.
using SessionId = int64_t;

struct SendTo {
  SessionId session;
  control::ToWorker message;
};
struct CloseSession {
  SessionId session;
  std::string reason;
};
// Durable. drop_from >= 0: forgets commits of that step and later, and evaluations after it.
struct PersistEpoch {
  uint64_t epoch;
  uint64_t generation;
  int64_t drop_from = -1;
  std::vector<std::string> roster;  // who holds each stage
  uint64_t state_revision = 0;      // Steps::state_revision
};
// Durable.
struct PersistCommit {
  CommitRow row;
};
// Durable. step: committed steps; is_final: over the whole split, after all steps.
struct PersistEvaluation {
  int64_t step;
  double loss;
  bool is_final;
};
// Durable.
struct PersistPaused {
  bool paused;
};
// Durable.
struct PersistRevoked {
  std::string peer;
  bool revoked = true;  // false: pardoned
};
// Durable: blocks per stage, final.
struct PersistCuts {
  std::vector<int64_t> cuts;
};
// Durable. The service answers with manifest_written() or manifest_failed().
struct WriteManifest {
  std::vector<control::StateFile> files;  // every unit of the model, in the model's order
};
struct LogEvent {
  std::string kind;
  std::string text;
};
struct Finish {
  bool failed;
  std::string reason;
};

using Effect = std::variant<SendTo, CloseSession, PersistEpoch, PersistCommit, PersistEvaluation, PersistPaused,
                            PersistRevoked, PersistCuts, WriteManifest, LogEvent, Finish>;
using Effects = std::vector<Effect>;

}  // namespace thinpipe
