// The finished model of a run on its way to the members that keep it (docs/joining.md): which files it has, and for
// whom the coordinator stays. Knows only the time that it is given; the caller holds a lock.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "proto/control.pb.h"
#include "store/manifest.h"

namespace thinpipe {

class GivenModel {
 public:
  // A member that takes no piece for this long is not waited for.
  static constexpr Duration kPatience = std::chrono::minutes(1);
  // Nobody has a slower line: the smallest cap of `join`, 256 kbit/s.
  static constexpr uint64_t kSlowestBytesPerS = 32'000;

  // Names of its files have a dot; units of a checkpoint and the token table have none (is_unit_name()).
  static bool is_name(std::string_view unit) { return unit.find('.') != std::string_view::npos; }

  // The run is over, and this member wants the model.
  void expect(const std::string& peer, TimePoint now);
  bool is_expected() const { return !keepers_.empty(); }
  // The files are written. CheckpointFile::unit: the name.
  void give(std::vector<CheckpointFile> files, TimePoint now);
  control::ModelFiles describe() const;
  bool holds(const std::string& name, const std::string& sha256) const;
  void note_moved(const std::string& peer, TimePoint now);
  // It has all files, or may have none.
  void forget(const std::string& peer);
  // How many are still to fetch it. Forgets those that stand still, and all when even slow lines had the time.
  size_t keepers(TimePoint now);

 private:
  std::vector<CheckpointFile> files_;
  bool given_ = false;
  TimePoint end_{};                           // when even slow lines had the time; once it is given
  std::map<std::string, TimePoint> keepers_;  // when they last took a piece
  std::set<std::string> forgotten_;
};

}  // namespace thinpipe
