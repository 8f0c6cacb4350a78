// The coordinator's decisions: who holds which stage, when a step is committed, aborted or run again, what everybody
// returns to when a process is gone. No I/O, no clock of its own, no threads: events go in with the time, effects come
// out with the sentence why (docs/control.md). The service (coordinator_service.h) is the only caller.
//
//   gathering -> forming -> idle <-> running | evaluating        any trouble: back to gathering, a new epoch
//                            idle -> done
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "config/model_spec.h"
#include "plan/placement.h"
#include "run/core/protocol.h"
#include "run/core/effects.h"
#include "run/core/path_book.h"

namespace thinpipe {

// What does not change during a run.
struct RunRules {
  std::string run;
  std::string config_sha256;  // config_identity()
  // Strangers take part: one of them that fails for good loses its place instead of ending the run.
  bool open = false;
  ModelConfig model;
  int64_t stages = 1;
  int64_t steps = 0;
  int64_t tokens_per_step = 1;
  double clip = 0;
  int64_t eval_every = 0;
  int64_t eval_windows = 0;
  int64_t final_windows = 0;
  int64_t tokens_per_window = 1;
  int64_t checkpoint_every = 0;
  Duration lease{};
  int64_t max_failures = 5;
  int64_t max_skipped = 10;
  // 1f1b only (else microbatches = 0): what the warm-up is computed from.
  int64_t microbatches = 0;
  double hop_s = 0;           // delay and transfer of one message on the emulated line, the slowest cut's
  uint64_t packet_bytes = 0;  // of one message, the largest; for the transfer on a line that was measured
  // The line of metrics.jsonl for a step, given its reports in stage order; and of timing.jsonl.
  using LineOf = std::function<std::string(const CommitRow&, const std::vector<control::Ready>&)>;
  LineOf metrics_line, timing_line;
  // Decides, once, which of the machines takes which stage with how many blocks. Null: by the config, in the order of
  // arrival.
  std::function<Result<Placement>(const std::vector<Machine>&)> place;
  // Which of the free seats goes to a machine with that much memory. Null: the first.
  std::function<SeatChoice(const std::vector<Seat>&, uint64_t memory_bytes)> seat;
};

// What a restarted coordinator knows from its store.
struct StoredRun {
  uint64_t epoch = 0;
  uint64_t generation = 0;
  std::optional<CommitRow> last_commit;
  int64_t committed = 0;
  std::set<int64_t> skipped;      // steps
  std::set<int64_t> evaluations;  // committed steps they followed
  std::optional<double> final_loss;
  int64_t manifest_step = -1;
  std::vector<control::StateFile> manifest_files;  // of it, one per unit of the model
  bool paused = false;
  std::vector<std::string> roster;  // who held each stage; they may come back
  std::set<std::string> revoked;    // peers
  std::vector<int64_t> cuts;        // blocks per stage; empty: not decided yet
};

// "stage 2 (alice)"
std::string stage_and_peer(int64_t stage, const std::string& peer);

class CoordinatorCore {
 public:
  CoordinatorCore(RunRules rules, StoredRun stored, TimePoint now);

  // Events. Every one returns what is to be done.
  Effects message(SessionId session, const control::FromWorker& message, TimePoint now);
  Effects session_ended(SessionId session, TimePoint now);
  Effects tick(TimePoint now);
  Effects file_arrived(const control::StateFile& file, TimePoint now);
  Effects manifest_written(const std::vector<control::StateFile>& files, TimePoint now);
  Effects manifest_failed(const std::string& reason, TimePoint now);
  Effects control(control::ControlRequest::What what, TimePoint now);
  // For good: its certificate is worth nothing from now on.
  Effects kick(const std::string& peer, TimePoint now);
  // Something the service could not do (a full disk): the run stops with the reason.
  Effects fail(const std::string& reason);

  void describe(control::RunStatus& status, TimePoint now) const;
  bool done() const { return phase_ == Phase::kDone; }
  int64_t committed() const { return committed_; }
  bool has_final_loss() const { return final_loss_.has_value(); }
  bool is_member(const std::string& peer) const { return members_.contains(peer); }
  bool is_revoked(const std::string& peer) const { return revoked_.contains(peer); }
  // The holder of a stage in the present epoch; nobody: empty.
  std::string holder(int64_t stage) const;
  bool holds_stage(const std::string& peer) const;
  // Whether a peer's stage has that unit of the model, and whether it is the one that saves it.
  bool holds_unit(const std::string& peer, const std::string& unit) const;
  bool saves_unit(const std::string& peer, const std::string& unit) const;
  // Whether these two are neighbours at that boundary in the present epoch, and their link is to be relayed.
  Status may_tunnel(const std::string& peer, int64_t boundary, uint64_t epoch, bool dials) const;
  // What somebody who came now would get.
  struct Offer {
    int64_t stage = -1;
    std::string why;
    uint64_t state_bytes = 0;
  };
  Offer offer() const;
  double step_seconds() const { return step_s_; }

 private:
  enum class Phase { kGathering, kForming, kIdle, kRunning, kEvaluating, kDone };

  struct Member {
    std::string peer, incarnation;
    std::vector<std::string> addresses;
    control::Machine machine;
    bool leaving = false;
    std::optional<SessionId> session;  // none: the stream broke, the lease runs
    TimePoint heard{};
    int64_t stage = -1;
    std::optional<control::Holding> holding;
    bool formed = false;
    std::optional<control::Ready> ready;
    std::optional<double> evaluated;
    int64_t arrival = 0;
  };

  void hello(SessionId session, const control::Hello& hello, TimePoint now, Effects& out);
  void resolve_doubt(Member& member, Effects& out);
  void admit(Member& member, SessionId session, const control::Hello& hello, TimePoint now, Effects& out);
  void refuse(SessionId session, const std::string& peer, const std::string& reason, Effects& out);
  void leave(Member& member, Effects& out);
  void release_leavers(Effects& out);
  bool has_leavers() const;
  void expel(Member& member, const std::string& reason, Effects& out);
  void trouble(Member& member, const control::Trouble& trouble, TimePoint now, Effects& out);
  void drop_expired(TimePoint now, Effects& out);
  void assign(Effects& out);
  void place_all(Effects& out);
  // Decides what comes next and does it; called at the end of every event.
  void advance(TimePoint now, Effects& out);
  // The ways of all links; false while answers to probes are awaited.
  bool choose_paths(TimePoint now, Effects& out);
  bool better_path_known(TimePoint now, Effects& out);
  void send_probes(const std::vector<PathProbe>& probes, Effects& out);
  control::Neighbour neighbour(const Member& member, size_t boundary, bool is_next) const;
  void note_probed(const Member& member, const control::Probed& probed);
  void note_paths(Member& member, const control::Formed& formed, Effects& out);
  std::string describe_path(size_t boundary) const;
  // Names the stage that sent numbers which are not finite, if one did.
  std::string why_skipped(const CommitRow& row, const std::vector<control::Ready>& reports);
  void form(Effects& out);
  void note_formed(Member& member);
  void act_when_idle(TimePoint now, Effects& out);
  void commit(Effects& out);
  void finish_evaluation(Effects& out);
  void abort(const std::string& why, Effects& out);
  void finish(bool failed, const std::string& reason, Effects& out);
  void request_save(Effects& out);
  void complete_save(Effects& out);
  // The files of the last checkpoint that the stage restores from.
  std::vector<control::StateFile> files_of(int64_t stage) const;
  bool stages_are_on_their_way() const;  // each has a holder, though its stream may be down
  bool evaluation_due() const;
  int64_t skipped_in_a_row() const;
  std::vector<int64_t> warmup() const;
  double measured_hop_s() const;

  std::vector<Member*> by_stage();  // empty when a stage has nobody connected
  Member* of_session(SessionId session);
  void to_all(const control::ToWorker& message, Effects& out);
  void send(const Member& member, control::ToWorker message, Effects& out);
  void log(Effects& out, std::string kind, const std::string& text);

  RunRules rules_;
  Phase phase_ = Phase::kGathering;
  std::string why_ = "waiting for workers";
  uint64_t epoch_;
  uint64_t generation_;
  int64_t committed_;
  int64_t basis_version_ = 0;
  std::optional<CommitRow> last_commit_;
  std::set<int64_t> skipped_;
  std::set<int64_t> evaluations_;
  std::optional<double> final_loss_;
  std::optional<double> last_validation_;
  int64_t manifest_step_;
  std::vector<control::StateFile> manifest_files_;
  bool paused_;
  bool stop_requested_ = false;
  bool failed_ = false;

  std::map<std::string, Member> members_;  // by peer
  std::set<std::string> revoked_;
  std::vector<int64_t> cuts_;
  PathBook book_;
  std::vector<PathChoice> paths_;  // of the present epoch, by boundary
  int64_t arrivals_ = 0;
  int64_t failures_ = 0;  // epochs in a row that ended in trouble without a commit
  std::optional<TimePoint> retry_at_;
  // The checkpoint under way.
  bool save_due_ = false;
  std::optional<int64_t> saving_step_;
  std::map<std::string, control::StateFile> arrived_;  // by unit
  // Mean seconds of one microbatch's forward and backward, and of the share that stages waited.
  double microbatch_s_ = 0;
  double wait_share_ = 0;
  uint64_t step_bytes_ = 0;
  double step_s_ = 0;
};

}  // namespace thinpipe
