#include "checkpoint/recut.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "checkpoint/safetensors.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kBasisName = "basis.u", kTapName = "tap.c", kDroppedName = "counters.dropped_share";

// In the order in which a stage writes them (pipeline/stage_state.cc): a file cut back is the file it was.
enum class Part { kParameter, kMoment, kBasis, kTap, kCounter };
enum class Owner { kEmbedding, kAnchors, kBlock, kHead, kStage };

// Where a tensor belongs, and where it stands among the others of its stage.
struct Place {
  Part part;
  Owner owner = Owner::kStage;
  int64_t number = 0;  // of the block or the anchor group

  auto order() const { return std::tuple(part, owner, number); }
};

std::optional<int64_t> leading_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || number < 0 || end == text.data()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Nothing when no stage has a tensor of that name.
std::optional<Place> place_of(std::string_view name) {
  if (name == kBasisName) return Place{Part::kBasis};
  if (name == kTapName) return Place{Part::kTap};
  if (name == kDroppedName) return Place{Part::kCounter};
  Place place{Part::kParameter};
  if (take_prefix(name, "optim.")) {
    place.part = Part::kMoment;
  } else if (!take_prefix(name, "param.")) {
    return std::nullopt;
  }
  const bool is_block = take_prefix(name, "blocks.");
  if (is_block || take_prefix(name, "anchors.")) {
    const auto number = leading_number(name);
    if (!number) return std::nullopt;
    place.owner = is_block ? Owner::kBlock : Owner::kAnchors;
    place.number = *number;
    const bool more = name.size() > 1 && name.front() == '.';
    return more || (!is_block && name.empty()) ? std::optional(place) : std::nullopt;
  }
  const auto parameter = name.substr(0, name.find('.'));
  if (parameter == "embedding" || parameter == "embedding_coordinates") {
    place.owner = Owner::kEmbedding;
  } else if (parameter == "final_norm" || parameter == "head") {
    place.owner = Owner::kHead;
  } else {
    return std::nullopt;
  }
  return place;
}

// Stages as block numbers: first block of each, and the end.
std::vector<int64_t> edges_of(const std::vector<int64_t>& cuts) {
  std::vector<int64_t> edges{0};
  for (const int64_t blocks : cuts) edges.push_back(edges.back() + blocks);
  return edges;
}

size_t stage_of_block(const std::vector<int64_t>& edges, int64_t block) {
  return static_cast<size_t>(std::upper_bound(edges.begin(), edges.end(), block) - edges.begin()) - 1;
}

std::string metadata_of(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "" : found->second;
}

std::string blocks_text(int64_t first, int64_t last, int64_t total) {
  return fmt::format("{}-{} of {}", first, last, total);
}

// A checkpoint's files, open and found to be the stages of one model.
class Pieces {
 public:
  Status open(const std::vector<fs::path>& paths, const std::vector<int64_t>& groups) {
    paths_ = paths;
    for (const auto& path : paths) {
      auto file = SafetensorsFile::open(path);
      if (!file) return file.error();
      files_.push_back(std::move(file).take());
    }
    if (files_.empty()) return Error{"a checkpoint without a file cannot be cut"};
    if (auto status = read_ranges(); !status) return status;
    group_edges_ = edges_of(groups);
    if (!groups.empty() && group_edges_.back() != blocks()) {
      return refuse(0, fmt::format("is of {} blocks, the anchor groups are of {}", blocks(), group_edges_.back()));
    }
    for (size_t i = 0; i < files_.size(); ++i) {
      if (auto status = check_shared(i); !status) return status;
      if (auto status = check_tensors(i); !status) return status;
    }
    return check_nothing_is_missing();
  }

  int64_t blocks() const { return edges_.back(); }
  const std::vector<int64_t>& edges() const { return edges_; }
  const std::vector<int64_t>& group_edges() const { return group_edges_; }

  // What stage [first, last) of the model holds, in its order.
  std::vector<SafetensorsTensor> stage(int64_t first, int64_t last) const {
    std::vector<std::pair<Place, const SafetensorsTensor*>> taken;
    const SafetensorsTensor* dropped = nullptr;
    for (size_t i = 0; i < files_.size(); ++i) {
      for (const auto& tensor : files_[i].tensors()) {
        const auto place = *place_of(tensor.name);
        // A stage reports the largest share of all it holds; of joined stages it is the largest of theirs.
        if (place.part == Part::kCounter) {
          const bool overlaps = edges_[i] < last && first < edges_[i + 1];
          if (overlaps && (dropped == nullptr || number_in(*dropped) < number_in(tensor))) dropped = &tensor;
        } else if (belongs(place, i, first, last)) {
          taken.emplace_back(place, &tensor);
        }
      }
    }
    std::stable_sort(taken.begin(), taken.end(),
                     [](const auto& a, const auto& b) { return a.first.order() < b.first.order(); });
    std::vector<SafetensorsTensor> tensors;
    for (const auto& [place, tensor] : taken) tensors.push_back(*tensor);
    if (dropped != nullptr) tensors.push_back(*dropped);
    return tensors;
  }

  SafetensorsMetadata metadata(size_t number, size_t count, int64_t first, int64_t last) const {
    auto metadata = files_.front().metadata();
    metadata["stage"] = fmt::format("{} of {}", number, count);
    metadata["blocks"] = blocks_text(first, last, blocks());
    return metadata;
  }

 private:
  Error refuse(size_t file, const std::string& message) const {
    return Error{fmt::format("{}: {}", paths_[file].string(), message)};
  }

  // "blocks" of the files: one after the other, from the first block to the last.
  Status read_ranges() {
    edges_ = {0};
    for (size_t i = 0; i < files_.size(); ++i) {
      const auto text = metadata_of(files_[i], "blocks");
      std::string_view rest = text;
      const auto first = leading_number(rest);
      const bool dash = take_prefix(rest, "-");
      const auto last = leading_number(rest);
      const bool of = take_prefix(rest, " of ");
      const auto total = leading_number(rest);
      if (!first || !dash || !last || !of || !total || !rest.empty() || *first >= *last || *last > *total) {
        return refuse(i, fmt::format("metadata 'blocks' is {}, needs the stage's blocks", quoted_for_error(text)));
      }
      const auto stage = fmt::format("{} of {}", i, files_.size());
      if (const auto found = metadata_of(files_[i], "stage"); found != stage) {
        return refuse(i, fmt::format("metadata 'stage' is {}, needs '{}'", quoted_for_error(found), stage));
      }
      const bool is_last = i + 1 == files_.size();
      if (*first != edges_.back() || (is_last && *last != *total)) {
        return refuse(i, fmt::format("has blocks {}, where they go on from {}{}", text, edges_.back(),
                                     is_last ? " to the last" : ""));
      }
      edges_.push_back(*last);
    }
    return {};
  }

  // All but the stage's own place is one and the same in every file, and so is the basis.
  Status check_shared(size_t i) const {
    const auto shared = [](const SafetensorsFile& file) {
      auto metadata = file.metadata();
      metadata.erase("stage");
      metadata.erase("blocks");
      return metadata;
    };
    const auto expected = shared(files_.front()), found = shared(files_[i]);
    for (const auto& [key, value] : expected) {
      const auto mine = metadata_of(files_[i], key);
      if (mine != value) {
        return refuse(i, fmt::format("metadata '{}' is {}, stage 0 has {}", key, quoted_for_error(mine),
                                     quoted_for_error(value)));
      }
    }
    if (found.size() != expected.size()) return refuse(i, "has metadata that stage 0 has not");
    const auto* first = files_.front().find(kBasisName);
    const auto* basis = files_[i].find(kBasisName);
    const bool same = first == nullptr || basis == nullptr
                          ? first == basis
                          : first->dtype == basis->dtype && first->shape == basis->shape &&
                                std::equal(first->bytes.begin(), first->bytes.end(), basis->bytes.begin());
    return same ? Status() : refuse(i, "has another basis than stage 0");
  }

  Status check_tensors(size_t i) {
    for (const auto& tensor : files_[i].tensors()) {
      const auto name = quoted_for_error(tensor.name);
      const auto place = place_of(tensor.name);
      if (!place) return refuse(i, fmt::format("tensor {} is not one of a stage", name));
      if (!is_at_home(*place, i)) return refuse(i, fmt::format("tensor {} does not belong in stage {}", name, i));
      const bool counter = place->part == Part::kCounter;
      if (counter && (tensor.dtype != Dtype::kF64 || tensor.bytes.size() != sizeof(double))) {
        return refuse(i, fmt::format("tensor {} needs to be one number of F64", name));
      }
      if (counter || place->part == Part::kBasis) continue;
      if (!names_.insert(tensor.name).second) return refuse(i, fmt::format("tensor {} stands in two stages", name));
      if (place->part == Part::kParameter && place->owner == Owner::kBlock) with_parameters_.insert(place->number);
    }
    return {};
  }

  bool is_at_home(const Place& place, size_t i) const { return belongs(place, i, edges_[i], edges_[i + 1]); }

  // Whether stage [first, last) holds what file i has at that place.
  bool belongs(const Place& place, size_t i, int64_t first, int64_t last) const {
    if (place.part == Part::kTap) return last == blocks();
    if (place.part == Part::kCounter) return true;
    if (place.part == Part::kBasis) return stage_of_block(edges_, first) == i;  // one copy, whosever
    switch (place.owner) {
      case Owner::kEmbedding:
        return first == 0;
      case Owner::kHead:
        return last == blocks();
      case Owner::kBlock:
        return first <= place.number && place.number < last;
      case Owner::kAnchors: {
        const auto group = static_cast<size_t>(place.number);
        return group + 1 < group_edges_.size() && first <= group_edges_[group] && group_edges_[group] < last;
      }
      case Owner::kStage:
        return false;
    }
    return false;
  }

  Status check_nothing_is_missing() const {
    for (int64_t block = 0; block < blocks(); ++block) {
      if (!with_parameters_.contains(block)) {
        return refuse(stage_of_block(edges_, block), fmt::format("has no parameters of block {}", block));
      }
    }
    const bool embedding = names_.contains("param.embedding") || names_.contains("param.embedding_coordinates");
    if (!embedding) return refuse(0, "has no embedding");
    if (!names_.contains("param.head")) return refuse(files_.size() - 1, "has no head");
    return {};
  }

  static double number_in(const SafetensorsTensor& tensor) {
    double number = 0;
    std::memcpy(&number, tensor.bytes.data(), sizeof number);
    return number;
  }

  std::vector<fs::path> paths_;
  std::vector<SafetensorsFile> files_;
  std::vector<int64_t> edges_;        // of the stages
  std::vector<int64_t> group_edges_;  // of the anchor groups; {0} when there are none
  std::set<std::string> names_;
  std::set<int64_t> with_parameters_;  // blocks
};

Status check_cuts(const Pieces& pieces, const std::vector<int64_t>& cuts) {
  const auto shown = fmt::format("cuts {}", fmt::join(cuts, ", "));
  const bool positive = std::all_of(cuts.begin(), cuts.end(), [](int64_t blocks) { return blocks >= 1; });
  const auto edges = edges_of(cuts);
  if (cuts.empty() || !positive || edges.back() != pieces.blocks()) {
    return Error{fmt::format("{}: need to be whole numbers from 1 that sum to the checkpoint's {} blocks", shown,
                             pieces.blocks())};
  }
  const auto& groups = pieces.group_edges();
  if (groups.size() == 1) return {};
  for (const int64_t edge : edges) {
    if (!std::binary_search(groups.begin(), groups.end(), edge)) {
      return Error{fmt::format("{}: a cut after block {} would split an anchor group", shown, edge)};
    }
  }
  return {};
}

}  // namespace

Status recut_stage_files(const std::vector<fs::path>& stage_files, const NewCuts& to, const fs::path& folder) {
  Pieces pieces;
  if (auto status = pieces.open(stage_files, to.anchor_groups); !status) return status;
  if (auto status = check_cuts(pieces, to.cuts); !status) return status;
  const auto edges = edges_of(to.cuts);
  for (size_t stage = 0; stage < to.cuts.size(); ++stage) {
    auto status = write_safetensors(folder / fmt::format("stage-{}.safetensors", stage),
                                    pieces.stage(edges[stage], edges[stage + 1]),
                                    pieces.metadata(stage, to.cuts.size(), edges[stage], edges[stage + 1]));
    if (!status) return status;
  }
  return {};
}

}  // namespace thinpipe
