// A made-up worker: what it is asked and answers, the little state that matters, and the ways in which a test can make
// it fail. FakeCluster moves its messages.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "run/core/coordinator_core.h"

namespace thinpipe::test {

using Texts = std::vector<std::string>;

// A stage's state, as far as it matters here: in which epoch each of its steps was committed.
using StageHistory = std::vector<uint64_t>;

// Answers as worker.cc does. Messages for it wait in `inbox`, its own in `outbox`.
struct FakeWorker {
  std::string peer, incarnation;
  std::optional<SessionId> session;
  std::deque<control::ToWorker> inbox;
  std::deque<control::FromWorker> outbox;
  bool alive = true;
  bool stopped = false;
  std::string refused;  // the reason
  Texts told_revoked;
  // What it answers.
  double squared_norm = 1, loss_sum = 2, evaluation_sum = 6;
  std::string basis_hash;
  bool slow = false;           // computes until slow is taken back and the test says finish_step()
  bool forming_fails = false;  // cannot fetch its file, or cannot reach its neighbour
  bool behind_nat = false;     // nobody can dial it
  bool silent_to_probes = false;
  bool leaving = false;
  double block_s = 0;
  double compute_s = 0;
  // What it holds.
  uint64_t epoch = 0, latest_epoch = 0;
  std::optional<control::Holding> holding;
  StageHistory history;
  std::optional<control::RunStep> computing;
  int steps_run = 0, restores = 0;

  void say_trouble(const std::string& reason, bool fatal = false) {
    control::FromWorker message;
    message.mutable_trouble()->set_epoch(epoch);
    message.mutable_trouble()->set_reason(reason);
    message.mutable_trouble()->set_fatal(fatal);
    outbox.push_back(message);
  }
  void finish_step() {
    if (!computing) return;
    holding->set_ready_step(computing->step());
    holding->set_ready_epoch(computing->epoch());
    outbox.push_back(ready(computing->epoch(), computing->step()));
    computing.reset();
  }
  control::FromWorker ready(uint64_t of_epoch, int64_t step) const {
    control::FromWorker message;
    message.mutable_ready()->set_epoch(of_epoch);
    message.mutable_ready()->set_step(step);
    message.mutable_ready()->set_squared_norm(squared_norm);
    message.mutable_ready()->set_loss_sum(loss_sum);
    message.mutable_ready()->set_basis_hash(basis_hash);
    message.mutable_ready()->set_forward_s(compute_s);
    return message;
  }
};

}  // namespace thinpipe::test
