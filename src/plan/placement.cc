// The search behind place(). The machines stand in a line, and one table over (machine, stage, position of the cut)
// decides for each machine whether it takes the next stage and where that stage ends.
#include "plan/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "base/result.h"
#include "base/units.h"
#include "plan/memory_plan.h"

namespace thinpipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Times are sums of measured seconds, so differences in the last bits mean nothing.
constexpr double kSlack = 1 + 1e-9;
// The search considers at most this many machines more than stages, the fastest ones, so that spares do not slow it
// down.
constexpr size_t kMostSpares = 8;

// Replaces unknown times by the mean of the known ones. Peers send these times, so impossible values count as unknown,
// and the others are clamped so that squares of sums stay finite.
void fill_in(std::vector<Machine>& machines, double Machine::*time, double otherwise) {
  const auto known = [time](const Machine& machine) { return std::isfinite(machine.*time) && machine.*time > 0; };
  double sum = 0;
  int count = 0;
  for (auto& machine : machines) {
    if (!known(machine)) continue;
    machine.*time = std::clamp(machine.*time, 1e-9, 1e9);
    sum += machine.*time;
    ++count;
  }
  for (auto& machine : machines) {
    if (!known(machine)) machine.*time = count > 0 ? sum / count : otherwise;
  }
}

// The cost of `stage` on a machine that has the pieces [from, to) of the model; kNever if it does not fit. Must not
// decrease as `to` grows.
using StageCost = std::function<double(size_t machine, size_t stage, size_t from, size_t to)>;

struct Division {
  double slowest = kNever;       // cost of the costliest stage; kNever: no division is possible
  double squares = 0;            // sum of the squared costs; among equally slow divisions, less is more even
  std::vector<size_t> machines;  // by stage
  std::vector<size_t> ends;      // by stage: the first piece after it
};

// Negative if `a` is better, 0 if they are equally good.
int compare(double a_slowest, double a_squares, double b_slowest, double b_squares) {
  if (a_slowest * kSlack < b_slowest) return -1;
  if (b_slowest * kSlack < a_slowest) return 1;
  return a_squares * kSlack < b_squares ? -1 : b_squares * kSlack < a_squares ? 1 : 0;
}

// Assigns the stages to machines of `line` in its order. The last machine takes the last stage; other machines may be
// left out. Finds nothing if some stage must cost more than `bound`. Pieces cannot be divided. Needs at least as many
// machines and pieces as stages.
Division divide(const std::vector<size_t>& line, size_t stages, size_t pieces, const StageCost& cost,
                double bound = kNever) {
  // [i][stage][from]: the best assignment of the pieces from `from` on to stages from `stage` on and machines from i
  // on.
  struct Cell {
    double slowest = kNever, squares = 0;
    size_t end = 0;  // of `stage` on machine i; 0: machine i is left out
  };
  using Table = std::vector<std::vector<Cell>>;
  std::vector<Table> best(line.size() + 1, Table(stages + 1, std::vector<Cell>(pieces + 1)));
  best.back()[stages][pieces].slowest = 0;
  for (size_t i = line.size(); i-- > 0;) {
    for (size_t stage = stages - std::min(stages, line.size() - i); stage < stages && stage <= i; ++stage) {
      const bool is_last = stage + 1 == stages;
      for (size_t from = stage; from + (stages - stage) <= pieces; ++from) {
        Cell& cell = best[i][stage][from];
        cell = best[i + 1][stage][from];
        cell.end = 0;
        if (is_last != (i + 1 == line.size())) continue;
        for (size_t to = is_last ? pieces : from + 1; to + (stages - stage - 1) <= pieces; ++to) {
          const double own = cost(line[i], stage, from, to);
          if (own == kNever || own > std::min(bound, cell.slowest) * kSlack) break;
          const Cell& rest = best[i + 1][stage + 1][to];
          if (rest.slowest == kNever) continue;
          const double slowest = std::max(own, rest.slowest), squares = own * own + rest.squares;
          // If equally good, prefer an earlier machine and a larger early stage.
          if (compare(slowest, squares, cell.slowest, cell.squares) <= 0) cell = {slowest, squares, to};
        }
      }
    }
  }
  Division result{best[0][0][0].slowest, best[0][0][0].squares, {}, {}};
  if (result.slowest == kNever) return result;
  for (size_t i = 0, from = 0; i < line.size(); ++i) {
    const size_t end = best[i][result.ends.size()][from].end;
    if (end == 0) continue;
    result.machines.push_back(line[i]);
    result.ends.push_back(from = end);
  }
  return result;
}

// The best division over both orders and every choice of the last machine.
Division search(const std::vector<Machine>& machines, size_t stages, size_t pieces, const StageCost& cost) {
  std::vector<size_t> by_arrival(machines.size());
  std::iota(by_arrival.begin(), by_arrival.end(), size_t{0});
  if (machines.size() > stages + kMostSpares) {
    std::stable_sort(by_arrival.begin(), by_arrival.end(),
                     [&](size_t a, size_t b) { return machines[a].block_s < machines[b].block_s; });
    by_arrival.resize(stages + kMostSpares);
    std::sort(by_arrival.begin(), by_arrival.end());
  }
  auto by_memory = by_arrival;
  std::stable_sort(by_memory.begin(), by_memory.end(), [&](size_t a, size_t b) {
    return machines[a].memory_bytes - 1 > machines[b].memory_bytes - 1;  // unknown (0) comes first
  });
  Division best;
  for (const auto& order : {by_arrival, by_memory}) {
    for (const size_t last : by_arrival) {
      auto line = order;
      std::erase(line, last);
      line.push_back(last);
      auto found = divide(line, stages, pieces, cost, best.slowest);
      const int sign = compare(found.slowest, found.squares, best.slowest, best.squares);
      if (sign < 0 || (sign == 0 && found.machines < best.machines)) best = std::move(found);
    }
  }
  return best;
}

// The block numbers where the model may be cut, from 0 to L: not inside an anchor group or the dense tail.
std::vector<int64_t> possible_cuts(const ModelConfig& model) {
  std::vector<int64_t> edges{0};
  if (model.is_subspace() && model.subspace.anchors == Anchors::kStage) {
    for (const int64_t count : model.subspace.anchor_groups) edges.push_back(edges.back() + count);
  } else {
    for (int64_t block = 1; block <= model.blocks; ++block) edges.push_back(block);
  }
  const int64_t last_cut = model.is_subspace() ? model.first_dense_block() : model.blocks;
  std::erase_if(edges, [&](int64_t edge) { return edge > last_cut && edge != model.blocks; });
  return edges;
}

std::string reason(const std::vector<Machine>& machines, const Placement& placement, const Division& division,
                   const StageCost& cost) {
  std::string out =
      fmt::format("{} blocks on {}: ", fmt::join(placement.cuts, " + "), fmt::join(placement.peers, ", "));
  if (std::none_of(machines.begin(), machines.end(), [](const Machine& machine) { return machine.block_s > 0; })) {
    out += "no speeds are known, so all machines count as equal";
  } else {
    size_t stage = 0;
    for (size_t from = 0; cost(division.machines[stage], stage, from, division.ends[stage]) * kSlack < division.slowest;
         ++stage) {
      from = division.ends[stage];
    }
    out += fmt::format("the slowest is stage {} on {} with {:.3g} s per microbatch", stage, placement.peers[stage],
                       division.slowest);
  }
  std::vector<std::string> spare;
  for (const auto& [peer, block_s, ends_s, memory_bytes] : machines) {
    if (std::count(placement.peers.begin(), placement.peers.end(), peer) == 0) spare.push_back(peer);
  }
  if (!spare.empty()) out += fmt::format("; spare: {}", fmt::join(spare, ", "));
  return out;
}

// enough_bytes: the run could be placed if as many machines as stages had this much memory each.
Error memory_error(const std::vector<Machine>& machines, size_t stages, double enough_bytes) {
  const auto least = std::min_element(machines.begin(), machines.end(), [](const auto& a, const auto& b) {
    return a.memory_bytes - 1 < b.memory_bytes - 1;  // unknown (0) is never the least
  });
  return {
      fmt::format("cannot fit {} stages into the memory of these {} machines: {} has the least, {}; "
                  "{} MiB on each would be enough; add larger machines, or lower train.microbatch or train.seq_len",
                  stages, machines.size(), least->peer, format_size(least->memory_bytes),
                  static_cast<uint64_t>(std::ceil(enough_bytes / (1 << 20))))};
}

}  // namespace

Result<Placement> place(const RunConfig& config, int64_t vocab, const std::vector<Machine>& machines) {
  const auto stages = static_cast<size_t>(config.pipeline.stages);
  if (machines.size() < stages) {
    return Error{
        fmt::format("pipeline.stages = {} needs as many machines, but only {} joined; wait for {} more, or set "
                    "pipeline.stages = {}",
                    stages, machines.size(), stages - machines.size(), std::max<size_t>(1, machines.size()))};
  }
  const auto edges = possible_cuts(config.model);
  const size_t pieces = edges.size() - 1;
  TP_CHECK(pieces >= stages, "{} stages and {} pieces: the config was not validated", stages, pieces);
  // Blocks before the tail are alike, so only their number (and that of anchor groups) matters.
  std::map<std::tuple<size_t, int64_t, size_t>, double> known_bytes;
  const auto bytes = [&](size_t stage, size_t from, size_t to) {
    const auto [entry, is_new] = known_bytes.try_emplace({stage, edges[to] - edges[from], to - from}, 0);
    if (is_new) {
      const auto plan =
          memory_plan(config, vocab, static_cast<int64_t>(stage), {edges[from], edges[to], config.model.blocks});
      entry->second = static_cast<double>(plan.total());
    }
    return entry->second;
  };
  auto timed = machines;
  fill_in(timed, &Machine::block_s, 1);
  fill_in(timed, &Machine::ends_s, 0);
  const StageCost cost = [&](size_t machine, size_t stage, size_t from, size_t to) {
    const auto& on = timed[machine];
    const auto memory = static_cast<double>(on.memory_bytes);
    if (memory > 0 && bytes(stage, from, to) > kMemoryShare * memory) return kNever;
    return static_cast<double>(edges[to] - edges[from]) * on.block_s + (to == pieces ? on.ends_s : 0);
  };
  const auto division = search(timed, stages, pieces, cost);
  if (division.slowest == kNever) {
    const auto enough = divide(std::vector<size_t>(stages), stages, pieces, [&](size_t, auto... stage_and_pieces) {
      return bytes(stage_and_pieces...) / kMemoryShare;
    });
    return memory_error(machines, stages, enough.slowest);
  }
  Placement placement;
  for (size_t stage = 0, from = 0; stage < stages; ++stage) {
    placement.cuts.push_back(edges[division.ends[stage]] - edges[from]);
    placement.peers.push_back(machines[division.machines[stage]].peer);
    from = division.ends[stage];
  }
  placement.why = reason(machines, placement, division, cost);
  return placement;
}

SeatChoice choose_seat(const RunConfig& config, int64_t vocab, std::vector<Seat> free, uint64_t memory_bytes) {
  if (free.empty()) return {std::nullopt, "waits: every stage has a worker"};
  std::sort(free.begin(), free.end());
  const int64_t lowest = free.front().stage;
  const auto may_use = static_cast<uint64_t>(kMemoryShare * static_cast<double>(memory_bytes));
  for (const auto& seat : free) {
    if (memory_bytes != 0 && memory_plan(config, vocab, seat.stage).total() > may_use) continue;
    if (seat.stage == lowest) return {seat, fmt::format("stage {}: nobody has it", lowest)};
    return {seat, fmt::format("stage {}: nobody has it, and stage {} needs more memory than this machine has",
                              seat.stage, lowest)};
  }
  const uint64_t needs = memory_plan(config, vocab, lowest).total();
  return {std::nullopt, fmt::format("waits: stage {} is free but needs {}; this machine may use {} of {}", lowest,
                                    format_size(needs), format_size(may_use), format_size(memory_bytes))};
}

}  // namespace thinpipe
