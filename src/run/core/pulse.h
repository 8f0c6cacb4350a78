// Whether a worker lives and gets on with its work, judged by its messages. Two questions: was it silent for longer
// than its line explains, and does it hold up the others although it lives? Values and free functions; the core
// (coordinator_core.h) passes in the time and acts on the answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "proto/control.pb.h"

namespace thinpipe {

// What one worker's messages have shown.
struct Pulse {
  int64_t messages = 0;
  Duration longest_gap{};    // between two messages; old gaps count less and less
  control::Heartbeat last;   // what the last heartbeat said
  TimePoint moved{};         // when `done` changed last
  TimePoint saving_moved{};  // when `saved` changed last
  bool noticed = false;      // an event says that it makes no progress
};

// A message came, this long after the one before. Old gaps count less and less.
void note_gap(Pulse& pulse, Duration gap);
void note_heartbeat(Pulse& pulse, const control::Heartbeat& heartbeat, TimePoint now);

// How long the worker may be silent before its connection counts as broken: three times the longest gap of its line,
// at least 1.5 s and at most the lease. So a frozen process on a quick line is noticed within two seconds, and a slow
// line is given time. The lease, until the line is known.
Duration patience_with(const Pulse& pulse, Duration lease);

enum class Duty { kForming, kStepping, kEvaluating, kSaving };

// How long a worker may take without any progress.
struct Deadlines {
  Duration notice;  // an event says so
  Duration act;     // it loses its place
  Duration most;    // for the whole duty, whatever progress it claims
};
// step_s: the last committed steps. size: of the duty, in steps.
Deadlines deadlines_of(Duty duty, const std::deque<double>& step_s, double size = 1);

// A worker that has something to do, in stage order.
struct OnDuty {
  const Pulse* pulse;
  bool finished;
};
struct Stall {
  std::vector<size_t> suspects;  // stages, in order
  Duration time;                 // without progress
};
// The stages that hold up a duty which began at `began`: those that compute and get nowhere for longer than
// deadlines.act. If all wait for one another, the two ends of each link on which a message is missing. nullopt: none.
std::optional<Stall> find_stall(const std::vector<OnDuty>& crew, TimePoint began, const Deadlines& deadlines,
                                TimePoint now);
// How long the worker has computed without progress; zero if it waits for a neighbour.
Duration time_stuck(const Pulse& pulse, TimePoint began, TimePoint now);
// The stages whose files are missing and of which nothing comes. `finished`: all files of that stage have arrived.
std::optional<Stall> find_unsaved(const std::vector<OnDuty>& crew, TimePoint began, const Deadlines& deadlines,
                                  TimePoint now);

}  // namespace thinpipe
