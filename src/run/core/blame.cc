#include "run/core/blame.h"

#include <algorithm>
#include <utility>

namespace thinpipe {

std::vector<std::string> count_fault(Blame& blame, const std::vector<std::string>& peers, int64_t most) {
  std::vector<std::string> over;
  for (const auto& peer : peers) {
    auto& points = blame.records[peer].points;
    points += Blame::kStepsPerFault;
    if (points >= most * Blame::kStepsPerFault) over.push_back(peer);
  }
  return over;
}

void wear_off(Blame& blame) {
  for (auto& [peer, record] : blame.records) record.points = std::max<int64_t>(0, record.points - 1);
}

Duration send_away(Blame& blame, const std::string& peer, TimePoint now) {
  auto& record = blame.records[peer];
  const auto doublings = std::min<int64_t>(record.exiles, 10);
  const auto time = std::min<Duration>(Blame::kLongestExile, Blame::kFirstExile * (int64_t{1} << doublings));
  ++record.exiles;
  record.points = 0;
  record.back_at = now + time;
  return time;
}

std::optional<Duration> time_away(const Blame& blame, const std::string& peer, TimePoint now) {
  const auto found = blame.records.find(peer);
  if (found == blame.records.end() || !found->second.back_at || now >= *found->second.back_at) return std::nullopt;
  return *found->second.back_at - now;
}

bool count_hello(Blame& blame, const std::string& peer, TimePoint now) {
  auto& record = blame.records[peer];
  if (now - record.minute >= std::chrono::minutes(1)) {
    record.minute = now;
    record.hellos = 0;
  }
  return ++record.hellos <= Blame::kMostHellos;
}

std::vector<size_t> disagreeing(const std::vector<std::string>& values) {
  std::vector<size_t> found;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool before = i > 0 && values[i] != values[i - 1];
    const bool after = i + 1 < values.size() && values[i] != values[i + 1];
    if (before || after) found.push_back(i);
  }
  return found;
}

}  // namespace thinpipe
