// A worker's decisions: what it does with each message from the coordinator, what it sends, and what state it holds. No
// I/O, no threads, no tensors, no clock: messages and the time go in, effects come out (docs/control.md). The shell
// that carries them out is worker/worker.cc; tests run the same core under a simulator.
//
// There are two kinds of effects. The thread that brought the message carries most of them out at once. The compute
// thread does the work, one piece at a time; done() reports its end and returns the next piece.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "proto/control.pb.h"

namespace thinpipe {

// What does not change while a worker is connected to one run.
struct WorkerFacts {
  std::string run;
  std::string coordinator;    // its address, for messages to people
  std::string config_sha256;  // of the config from RunDescription
  int64_t stages = 1;
  int64_t blocks = 1;
  std::string peer;
  std::string incarnation;             // this process
  std::vector<std::string> addresses;  // where neighbours may dial
  control::Machine machine;
  bool keeps_model = false;                      // its owner wants the finished model
  Duration patience = std::chrono::minutes(10);  // gives up after this long without a useful connection
};

// ---- work, for the compute thread ----

// Take the seat: load the state if form.restore(), connect to the neighbours. Answered by Formed.
struct TakeSeat {
  control::Form form;
};
// Answered by Ready.
struct ComputeStep {
  control::RunStep step;
};
// Change the weights. Answered by WorkOk.
struct ApplyCommit {
  control::Commit commit;
};
// Answered by Evaluated.
struct ComputeLoss {
  control::Evaluate evaluate;
};
// Answered by WorkOk as soon as the next step may begin.
struct SaveState {
  control::Save save;
};
using Work = std::variant<TakeSeat, ComputeStep, ApplyCommit, ComputeLoss, SaveState>;

struct WorkOk {};
struct WorkFailed {
  std::string reason;
  bool fatal = false;  // a retry would fail the same way
  // Set if the link to that neighbour broke, or what it sent was refused.
  bool from_previous = false, from_next = false;
};
using WorkDone = std::variant<control::Formed, control::Ready, control::Evaluated, WorkOk, WorkFailed>;

// ---- at once ----

// Send it. Lost if the line is down; the next Hello repeats what matters.
struct Say {
  control::FromWorker message;
};
// End every wait of the compute thread on links of epochs before this one.
struct Interrupt {
  uint64_t epoch;
  std::string reason;
};
// Close the link to this peer, if any, and admit it no more.
struct CutOff {
  std::string peer, reason;
};
struct AnswerProbe {
  control::Probe probe;
};
// The last effect.
struct End {
  std::string why;
  bool failed = false;
  bool outdated = false;   // the run's config has changed: fetch it and start again
  bool resumable = false;  // the run is not over: its coordinator was stopped, and may be started again
  Duration retry_after{};  // above 0: come back after that time
};

using WorkerEffect = std::variant<Say, Interrupt, CutOff, AnswerProbe, Work, End>;
using WorkerEffects = std::vector<WorkerEffect>;

class WorkerCore {
 public:
  // A worker that is asked to leave waits this long for a coordinator that does not answer.
  static constexpr Duration kLeavePatience = std::chrono::seconds(5);

  WorkerCore(WorkerFacts facts, TimePoint now);

  // ---- the line to the coordinator ----

  // There is a new connection. Returns the first message to send.
  control::FromWorker connected();
  WorkerEffects disconnected(TimePoint now);
  WorkerEffects message(const control::ToWorker& message);
  // Called at every heartbeat, which says how far the compute thread is.
  WorkerEffects tick(const control::Heartbeat& heartbeat = {});

  // ---- this machine ----

  // The work under way has ended.
  WorkerEffects done(WorkDone result);
  // The person wants to leave. The worker stays until the coordinator says Stop, or until it is clear that nobody
  // answers.
  WorkerEffects leave(TimePoint now);
  // Something other than the work failed permanently, for instance writing a checkpoint.
  WorkerEffects failed(const std::string& reason);

  // The newest known epoch. Work of older epochs is worthless.
  uint64_t latest_epoch() const { return latest_epoch_; }
  const std::optional<control::Holding>& holding() const { return holding_; }
  bool ended() const { return ended_; }

 private:
  void take_form(const control::ToWorker& message, WorkerEffects& out);
  // Starts the next piece of work if none is under way.
  void advance(WorkerEffects& out);
  // Returns the work that the message asks for, if any.
  std::optional<Work> obey(const control::ToWorker& message, WorkerEffects& out);
  std::optional<Work> obey_form(const control::ToWorker& message, WorkerEffects& out);
  std::optional<Work> obey_run_step(const control::RunStep& step, WorkerEffects& out);

  void finish(const control::Formed& formed, WorkerEffects& out);
  void finish(const control::Ready& ready, WorkerEffects& out);
  void finish(const control::Evaluated& evaluated, WorkerEffects& out);
  void finish(const WorkOk& ok, WorkerEffects& out);
  void finish(const WorkFailed& failure, WorkerEffects& out);

  void complain(const WorkFailed& failure, WorkerEffects& out) const;
  void say(control::FromWorker message, WorkerEffects& out) const;
  void end(End end, WorkerEffects& out);
  // Ends a worker that wants to leave and has nobody to tell.
  void leave_alone(TimePoint now, WorkerEffects& out);
  bool holds_step(int64_t step) const { return holding_ && holding_->applied() == step; }
  bool holds_state_of(const control::Form& form) const;

  const WorkerFacts facts_;
  bool leaving_ = false;
  bool ended_ = false;
  bool dialled_ = false;    // there is a connection, or one is being opened
  bool useful_ = false;     // the current connection has brought a message
  TimePoint last_contact_;  // the end of the last useful connection
  uint64_t latest_epoch_ = 0, latest_revision_ = 0;
  uint64_t epoch_ = 0, revision_ = 0;  // of the last seat taken
  std::optional<control::Holding> holding_;
  std::deque<control::ToWorker> queue_;  // waits for the work under way
  std::optional<Work> doing_;
};

}  // namespace thinpipe
