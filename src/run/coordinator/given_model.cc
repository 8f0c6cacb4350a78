#include "run/coordinator/given_model.h"

#include <algorithm>
#include <utility>

namespace thinpipe {

void GivenModel::expect(const std::string& peer, TimePoint now) {
  if (!forgotten_.contains(peer)) keepers_[peer] = now;
}

// Its last call may overtake the end of its stream, which is when it is expected.
void GivenModel::forget(const std::string& peer) {
  keepers_.erase(peer);
  forgotten_.insert(peer);
}

void GivenModel::give(std::vector<CheckpointFile> files, TimePoint now) {
  files_ = std::move(files);
  given_ = true;
  uint64_t bytes = 0;
  for (const auto& file : files_) bytes += file.bytes;
  end_ = now + kPatience + std::chrono::seconds(bytes / kSlowestBytesPerS);
  for (auto& [peer, moved] : keepers_) moved = now;  // they could not move before
}

control::ModelFiles GivenModel::describe() const {
  control::ModelFiles reply;
  reply.set_ready(given_);
  for (const auto& file : files_) {
    auto& one = *reply.add_files();
    one.set_unit(file.unit);
    one.set_bytes(file.bytes);
    one.set_sha256(file.sha256);
  }
  return reply;
}

bool GivenModel::holds(const std::string& name, const std::string& sha256) const {
  return std::any_of(files_.begin(), files_.end(),
                     [&](const auto& file) { return file.unit == name && file.sha256 == sha256; });
}

void GivenModel::note_moved(const std::string& peer, TimePoint now) {
  if (const auto found = keepers_.find(peer); found != keepers_.end()) found->second = now;
}

size_t GivenModel::keepers(TimePoint now) {
  if (given_ && now > end_) keepers_.clear();
  if (given_) std::erase_if(keepers_, [&](const auto& keeper) { return now - keeper.second > kPatience; });
  return keepers_.size();
}

}  // namespace thinpipe
