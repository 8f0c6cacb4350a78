// A worker's process in a simulation: the real core, and a compute thread, links and an uploader that take virtual
// time. It may lie in the ways that the project promises to withstand (docs/security.md).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "chain_model.h"
#include "net/packet_shelf.h"
#include "run/core/worker_core.h"
#include "virtual_time.h"

namespace thinpipe::sim {

class World;
struct Connection;

enum class Lie {
  kNone,
  kTrouble,         // reports trouble all the time
  kFatal,           // reports fatal trouble
  kNotFinite,       // reports numbers that are not finite
  kNegativeNorm,    // would switch clipping off
  kNegativeLoss,    // would be the best of all runs
  kOtherPayload,    // sends its neighbours other payloads than it reports
  kOtherBasis,      // reports another basis
  kGarbageFile,     // uploads garbage with the right hash
  kNotFiniteFile,   // uploads a file with numbers that are not finite
  kOtherStepFile,   // uploads the file of another step
  kOtherBasisFile,  // uploads files of basis 999, or announces them so
  kHugeFile,        // announces 2^62 bytes
  kCrumbs,          // uploads files in parts of no bytes
  kOthersFile,      // uploads another stage's unit
  kSlowUpload,      // pauses in the middle of each file
  kClaim,           // says in its Hello that it holds the state of a stage, if it can of one that is vacant
  kOtherName,       // says Hello in another's name
  kFlood,           // connects all the time
  kSilentLines,     // opens connections and says nothing
  kReplay,          // says again what it said before, or what it might have said to another start of the coordinator
  kPackets,         // floods its neighbours with packets of any step and epoch
  kHang,            // its heartbeats go on and nothing else does
  kCount
};
const char* name_of(Lie lie);

class SimWorker {
 public:
  SimWorker(World& world, std::string peer, std::string key)
      : world_(world), peer_(std::move(peer)), key_(std::move(key)) {}

  // ---- the process ----

  void start();
  void die();
  void freeze(Duration time);
  bool is_alive() const { return core_ != nullptr; }
  bool is_frozen() const;
  const std::string& peer() const { return peer_; }
  const std::string& key() const { return key_; }
  int life() const { return life_; }
  const WorkerCore* core() const { return core_.get(); }
  const UnitStates& states() const { return states_; }
  void set_lie(Lie lie) { lie_ = lie; }
  Lie lie() const { return lie_; }
  bool is_uploading() const { return is_alive() && !uploads_.empty(); }
  void leave();
  // Now, or when a frozen process wakes up.
  void when_awake(const std::function<void()>& what);

  // Until when something keeps it from taking part as a healthy worker would. A shorter trouble does not end a longer
  // one.
  void trouble_until(TimePoint time) { troubled_ = std::max(troubled_, time); }
  TimePoint troubled() const { return troubled_; }

  std::set<int64_t> held;  // stages of which it has ever had a seat
  TimePoint away_until{};
  bool revoked = false, left = false;
  int route = 0;  // which coordinator it dials

  // ---- the line to the coordinator ----

  void dial();
  void hear(const control::ToWorker& message);
  void line_ended(const Connection* line);
  const std::shared_ptr<Connection>& line() const { return line_; }

  // ---- neighbours ----

  struct At {
    uint64_t revision = 0, epoch = 0;
    bool operator==(const At&) const = default;
  };
  bool is_linked_at(const At& at) const { return is_alive() && has_state_ && at_ == at; }
  void packet(const At& at, const PacketTag& tag, uint64_t payload);

 private:
  void later(Duration delay, std::function<void()> what);
  void later_in_work(Duration delay, std::function<void()> what);
  void act(const WorkerEffects& effects);
  void carry_out(const Say& say);
  void carry_out(const Interrupt& interrupt);
  void carry_out(const CutOff&) {}
  void carry_out(const AnswerProbe& question);
  void carry_out(const Work& work);
  void carry_out(const End& end);
  void say(control::FromWorker message);
  void send_payload(const std::string& neighbour, bool forward, uint64_t payload);
  void flood_neighbours();
  void beat();
  void lie_aloud();
  void dial_again();
  void falsify(control::Ready& ready) const;
  control::FromWorker first_words();

  void begin(const TakeSeat& work);
  void begin(const ComputeStep& work);
  void begin(const ApplyCommit& work);
  void begin(const ComputeLoss& work);
  void begin(const SaveState& work);
  void finish(WorkDone result);
  void fetch_files(const control::Form& form, int next);
  void link_up(TimePoint since);
  void wait_forward();
  void wait_backward();
  // Reports trouble if the link broke or the work was interrupted. True if the work is over.
  bool gives_up(bool at_previous);
  bool link_works(bool previous) const;
  void check_states(int64_t step, const char* what) const;

  void upload_next();
  void upload_part(int64_t upload, const std::shared_ptr<Connection>& line, size_t done);
  struct Upload {
    control::StateFile file;
    std::string bytes;
  };
  Upload make_upload(const std::string& unit, const control::Save& save) const;
  void retry_upload();

  World& world_;
  const std::string peer_, key_;
  int life_ = 0;
  TimePoint frozen_until_{}, troubled_{};
  std::unique_ptr<WorkerCore> core_;
  std::shared_ptr<Connection> line_;
  Lie lie_ = Lie::kNone;
  std::deque<control::FromWorker> said_;  // for replays

  std::map<uint64_t, uint64_t> revisions_;  // by epoch, of the Forms heard
  std::optional<Work> work_;
  uint64_t work_number_ = 0;
  bool interrupted_ = false;
  At at_;
  bool has_state_ = false;
  int64_t stage_ = -1;
  std::string previous_, next_;
  int previous_life_ = 0, next_life_ = 0;
  UnitStates states_;
  // What came from a neighbour in the epoch of at_. A refused packet breaks the link.
  struct Neighbour {
    Neighbour(int64_t microbatches, uint64_t epoch) : shelf(microbatches, epoch) {}
    std::optional<uint64_t> take(const PacketTag& tag);
    PacketShelf shelf;
    bool refused = false;
  };
  std::optional<Neighbour> from_previous_, from_next_;
  StageStep step_;  // under way
  std::optional<StageStep> gradient_;
  At gradient_at_;
  control::Heartbeat pulse_;
  std::deque<Upload> uploads_;
  uint64_t saves_ = 0;
};

}  // namespace thinpipe::sim
