// The search behind place(): a bound on the slowest stage's time is tried by bisection over the times that can occur;
// for a bound, a table over sets of machines says how many blocks the stages they take can cover at most. Covering more
// is never worse for the stages behind: what is left for them only gets smaller.
#include "plan/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "base/result.h"
#include "base/units.h"
#include "plan/memory_plan.h"

namespace thinpipe {
namespace {

constexpr size_t kNotAsked = std::numeric_limits<size_t>::max();
constexpr double kNoBound = std::numeric_limits<double>::infinity();
// Times are sums of measured seconds: the last bits decide nothing.
constexpr double kSlack = 1 + 1e-9;

// Replaces what is not known by the mean of what is. The times come from peers: what no machine can take is not known
// either, and what is left is kept so that squares of sums stay numbers.
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

class Search {
 public:
  using Set = uint32_t;  // machines, as bits

  Search(const RunConfig& config, int64_t vocab, std::vector<Machine> machines)
      : config_(config), vocab_(vocab), machines_(std::move(machines)), stages_(config.pipeline.stages) {
    fill_in(machines_, &Machine::block_s, 1);
    fill_in(machines_, &Machine::ends_s, 0);
    make_edges();
  }

  const std::vector<Machine>& machines() const { return machines_; }
  void set_memory(size_t machine, uint64_t bytes) {
    machines_[machine].memory_bytes = bytes;
    std::fill(by_memory_.begin(), by_memory_.end(), kNotAsked);
  }
  bool has_enough_edges() const { return static_cast<int64_t>(edges_.size()) > stages_; }

  // Of the stage that has blocks [first, last), one microbatch.
  double time_of(size_t machine, int64_t first, int64_t last) const {
    const auto& on = machines_[machine];
    return static_cast<double>(last - first) * on.block_s + (last == config_.model.blocks ? on.ends_s : 0);
  }

  uint64_t need(int64_t stage, int64_t first, int64_t last) {
    const auto [entry, is_new] = needs_.try_emplace({stage, first, last}, 0);
    if (is_new) entry->second = memory_plan(config_, vocab_, stage, {first, last, config_.model.blocks}).total();
    return entry->second;
  }

  // The index of the furthest edge at which `stage` may end on that machine if it begins at edge `from`; `from` itself
  // when it can take nothing. The last stage ends where the model does, or takes nothing.
  size_t reach(size_t machine, int64_t stage, size_t from, double bound) {
    const size_t end = last_edge(stage);
    if (from >= end) return from;
    const bool is_last = stage + 1 == stages_;
    const double left_s = bound * kSlack - (is_last ? machines_[machine].ends_s : 0);
    const double blocks = std::clamp(std::floor(left_s / machines_[machine].block_s), 0.0,
                                     static_cast<double>(config_.model.blocks - edges_[from]));
    const size_t by_time = edge_before_[static_cast<size_t>(edges_[from] + static_cast<int64_t>(blocks))];
    const size_t to = std::min({end, by_time, reach_by_memory(machine, stage, from)});
    return is_last && to != end ? from : to;
  }

  // Whether the stages after those that `taken` hold, which end at edge `from`, can be given to the other machines.
  bool can_finish(Set taken, size_t from, double bound) {
    if (std::popcount(taken) == stages_) return edges_[from] == config_.model.blocks;
    const Set all = (Set{1} << machines_.size()) - 1;
    std::vector<size_t> furthest(size_t{all} + 1, 0);  // 0: that set cannot take the stages up to here
    furthest[taken] = from + 1;                        // so edges are counted from 1
    for (Set set = taken; set <= all; ++set) {
      if (furthest[set] == 0 || (set & taken) != taken) continue;
      const int64_t stage = std::popcount(set);
      for (size_t machine = 0; machine < machines_.size(); ++machine) {
        const Set bit = Set{1} << machine;
        if ((set & bit) != 0) continue;
        const size_t to = reach(machine, stage, furthest[set] - 1, bound);
        if (to == furthest[set] - 1) continue;
        if (stage + 1 == stages_) return true;
        furthest[set | bit] = std::max(furthest[set | bit], to + 1);
      }
    }
    return false;
  }

  bool possible(double bound) { return can_finish(0, 0, bound); }

  // The least bound that is possible. One must be.
  double least_bound() {
    std::vector<double> times;
    for (size_t machine = 0; machine < machines_.size(); ++machine) {
      for (int64_t count = 1; count <= config_.model.blocks; ++count) {
        times.push_back(time_of(machine, 0, count));
        times.push_back(time_of(machine, config_.model.blocks - count, config_.model.blocks));
      }
    }
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    return *std::partition_point(times.begin(), times.end(), [this](double bound) { return !possible(bound); });
  }

  // Who takes which stage: the earliest machine of which there is still a way on.
  std::vector<size_t> seats(double bound) {
    std::vector<size_t> order;
    Set taken = 0;
    size_t from = 0;
    for (int64_t stage = 0; stage < stages_; ++stage) {
      for (size_t machine = 0; machine < machines_.size(); ++machine) {
        const Set bit = Set{1} << machine;
        if ((taken & bit) != 0) continue;
        const size_t to = reach(machine, stage, from, bound);
        if (to == from || !can_finish(taken | bit, to, bound)) continue;
        order.push_back(machine);
        taken |= bit;
        from = to;
        break;
      }
    }
    TP_CHECK(static_cast<int64_t>(order.size()) == stages_, "{} of {} stages have a machine", order.size(), stages_);
    return order;
  }

  // Blocks per stage for these machines: no stage slower than the bound, and the stages as equal as can be (the least
  // sum of squares of their times).
  std::vector<int64_t> cuts(const std::vector<size_t>& order, double bound) {
    const size_t edge_count = edges_.size();
    std::vector<double> cost(edge_count, kNoBound);  // of the stages from `stage` on, by the edge where it begins
    cost.back() = 0;
    std::vector<std::vector<size_t>> ends(order.size(), std::vector<size_t>(edge_count, 0));
    for (size_t stage = order.size(); stage-- > 0;) {
      std::vector<double> before(edge_count, kNoBound);
      for (size_t from = 0; from + 1 < edge_count; ++from) {
        const size_t furthest = reach(order[stage], static_cast<int64_t>(stage), from, bound);
        for (size_t to = furthest; to > from; --to) {  // from far to near: the earlier stage wins a tie
          const double time = time_of(order[stage], edges_[from], edges_[to]);
          const double sum = cost[to] + time * time;
          if (sum * kSlack < before[from]) before[from] = sum, ends[stage][from] = to;
        }
      }
      cost = std::move(before);
    }
    std::vector<int64_t> blocks;
    for (size_t stage = 0, from = 0; stage < order.size(); ++stage) {
      const size_t to = ends[stage][from];
      blocks.push_back(edges_[to] - edges_[from]);
      from = to;
    }
    return blocks;
  }

 private:
  // Where the model may be cut: after any block, but inside no anchor group and not inside the tail.
  void make_edges() {
    const auto& model = config_.model;
    const int64_t last_cut = model.is_subspace() ? model.first_dense_block() : model.blocks;
    edges_.push_back(0);
    if (model.is_subspace() && model.subspace.anchors == Anchors::kStage) {
      for (const int64_t count : model.subspace.anchor_groups) edges_.push_back(edges_.back() + count);
    } else {
      for (int64_t block = 1; block <= model.blocks; ++block) edges_.push_back(block);
    }
    std::erase_if(edges_, [&](int64_t edge) { return edge > last_cut && edge != model.blocks; });
    for (int64_t block = 0; block <= model.blocks; ++block) {
      const auto after = std::upper_bound(edges_.begin(), edges_.end(), block);
      edge_before_.push_back(static_cast<size_t>(after - edges_.begin()) - 1);
    }
    by_memory_.assign(machines_.size() * static_cast<size_t>(stages_) * edges_.size(), kNotAsked);
  }

  // The same as reach() for a machine with all the time in the world.
  size_t reach_by_memory(size_t machine, int64_t stage, size_t from) {
    const auto slot = (machine * static_cast<size_t>(stages_) + static_cast<size_t>(stage)) * edges_.size() + from;
    if (by_memory_[slot] != kNotAsked) return by_memory_[slot];
    const auto memory = static_cast<double>(machines_[machine].memory_bytes);
    const auto fits = [&](size_t to) {
      return memory == 0 || static_cast<double>(need(stage, edges_[from], edges_[to])) <= kMemoryShare * memory;
    };
    size_t good = from, bad = last_edge(stage) + 1;
    while (bad - good > 1) {
      const size_t middle = (good + bad) / 2;
      (fits(middle) ? good : bad) = middle;
    }
    return by_memory_[slot] = good;
  }

  // The stages behind it need a piece each.
  size_t last_edge(int64_t stage) const { return edges_.size() - static_cast<size_t>(stages_ - stage); }

  RunConfig config_;
  int64_t vocab_;
  std::vector<Machine> machines_;
  int64_t stages_;
  std::vector<int64_t> edges_;       // ascending block numbers, from 0 to L
  std::vector<size_t> edge_before_;  // by block number: the index of the last edge not behind it
  std::vector<size_t> by_memory_;    // by machine, stage and edge: what reach_by_memory() has said
  std::map<std::tuple<int64_t, int64_t, int64_t>, uint64_t> needs_;
};

constexpr const char* kLower = "lower train.microbatch or train.seq_len";

// Nothing fits: the machine with the least memory that could change it by having more, and how much.
Error memory_error(Search& search, const RunConfig& config) {
  auto machines = search.machines();
  std::vector<size_t> order(machines.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto rank = [&](size_t i) { return machines[i].memory_bytes - 1; };  // not known: last
    return rank(a) < rank(b);
  });
  for (const size_t i : order) {
    const uint64_t has = machines[i].memory_bytes;
    if (has == 0) continue;
    search.set_memory(i, 0);
    if (search.possible(kNoBound)) {
      uint64_t low = has, high = uint64_t{1} << 62;
      while (high - low > (1 << 20)) {
        const uint64_t middle = low + (high - low) / 2;
        search.set_memory(i, middle);
        (search.possible(kNoBound) ? high : low) = middle;
      }
      const uint64_t mib = (high + (1 << 20) - 1) >> 20;
      return {
          fmt::format("{} has {} of memory to give, too little for any division into {} stages: {} MiB would do; "
                      "let a larger machine join, or {}",
                      machines[i].peer, format_size(has), config.pipeline.stages, mib, kLower)};
    }
    search.set_memory(i, has);
  }
  const auto& least = machines[order.front()];
  const uint64_t smallest = search.need(0, 0, 1);
  return {
      fmt::format("no division into {} stages fits these {} machines: {} has the least, {}, and a first stage of one "
                  "block takes {}; let machines with more memory join, or {}",
                  config.pipeline.stages, machines.size(), least.peer, format_size(least.memory_bytes),
                  format_size(static_cast<uint64_t>(static_cast<double>(smallest) / kMemoryShare)), kLower)};
}

std::string reason(const Search& search, const std::vector<Machine>& given, const std::vector<size_t>& order,
                   const Placement& placement) {
  size_t slowest = 0;
  double time = 0;
  int64_t first = 0;
  for (size_t stage = 0; stage < order.size(); ++stage) {
    const int64_t last = first + placement.cuts[stage];
    const double own = search.time_of(order[stage], first, last);
    if (own > time * kSlack) time = own, slowest = stage;
    first = last;
  }
  std::string out =
      fmt::format("{} blocks on {}: ", fmt::join(placement.cuts, " + "), fmt::join(placement.peers, ", "));
  if (std::none_of(given.begin(), given.end(), [](const Machine& machine) { return machine.block_s > 0; })) {
    out += "no speed is known, so all count as equal";
  } else {
    out += fmt::format("the slowest, stage {} on {}, takes {:.3g} s a microbatch", slowest, placement.peers[slowest],
                       time);
  }
  std::vector<std::string> spare;
  for (const auto& machine : given) {
    const auto& peers = placement.peers;
    if (std::find(peers.begin(), peers.end(), machine.peer) == peers.end()) spare.push_back(machine.peer);
  }
  if (!spare.empty()) out += fmt::format("; {} left over", fmt::join(spare, ", "));
  return out;
}

}  // namespace

Result<Placement> place(const RunConfig& config, int64_t vocab, const std::vector<Machine>& machines) {
  const int64_t stages = config.pipeline.stages;
  const auto count = static_cast<int64_t>(machines.size());
  if (count < stages) {
    return Error{
        fmt::format("pipeline.stages = {} needs as many machines, {} are here; wait for {} more, or set "
                    "pipeline.stages = {}",
                    stages, count, stages - count, std::max<int64_t>(1, count))};
  }
  if (machines.size() > kMostMachines || config.model.blocks > kMostPlacedBlocks) {
    return Error{
        fmt::format("{} machines and {} blocks: pipeline.cuts = \"auto\" places at most {} and {}; give a list "
                    "of cuts",
                    count, config.model.blocks, kMostMachines, kMostPlacedBlocks)};
  }
  Search search(config, vocab, machines);
  if (!search.has_enough_edges()) {
    return Error{
        fmt::format("pipeline.stages = {}: subspace.full_rank_tail or subspace.anchor_groups leave fewer places "
                    "to cut; set fewer stages",
                    stages)};
  }
  if (!search.possible(kNoBound)) return memory_error(search, config);
  const double bound = search.least_bound();
  const auto order = search.seats(bound);
  Placement placement;
  placement.cuts = search.cuts(order, bound);
  for (const size_t machine : order) placement.peers.push_back(machines[machine].peer);
  placement.why = reason(search, machines, order, placement);
  return placement;
}

RunConfig placed(RunConfig config, const Placement& placement) {
  config.pipeline.cuts = placement.cuts;
  config.pipeline.auto_cuts = false;
  return config;
}

SeatChoice choose_stage(const RunConfig& config, int64_t vocab, const std::vector<Seat>& seats, uint64_t memory_bytes) {
  std::vector<int64_t> open;
  for (const auto& seat : seats) {
    if (!seat.held) open.push_back(seat.stage);
  }
  if (open.empty()) return {std::nullopt, "waits: every stage has its worker"};
  std::sort(open.begin(), open.end());
  const auto may_use = static_cast<uint64_t>(kMemoryShare * static_cast<double>(memory_bytes));
  for (const int64_t stage : open) {
    if (memory_bytes != 0 && memory_plan(config, vocab, stage).total() > may_use) continue;
    if (stage == open.front()) return {stage, fmt::format("stage {}: nobody has it", stage)};
    return {stage,
            fmt::format("stage {}: nobody has it, and stage {} needs more memory than is here", stage, open.front())};
  }
  const uint64_t needs = memory_plan(config, vocab, open.front()).total();
  return {std::nullopt, fmt::format("waits: stage {} is free and needs {}, {} of {} may be used here", open.front(),
                                    format_size(needs), format_size(may_use), format_size(memory_bytes))};
}

}  // namespace thinpipe
