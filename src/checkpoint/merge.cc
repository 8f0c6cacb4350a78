#include "checkpoint/merge.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "checkpoint/safetensors_header.h"

namespace thinpipe {
namespace {

constexpr std::string_view kBasisInStage = "basis.u";
constexpr std::string_view kMergedBasis = "basis";

// Collects tensors whose files the caller keeps open.
class Merged {
 public:
  Status add(const SafetensorsTensor& tensor, std::string_view name, const std::filesystem::path& from) {
    const auto refuse = [&](const std::string& message) {
      return Error{fmt::format("{}: tensor {} {}", from.string(), quoted_for_error(tensor.name), message)};
    };
    if (name.empty() || name == "__metadata__") {
      return refuse(
          fmt::format("would be called {} in the merged file, which is no name for a tensor", quoted_for_error(name)));
    }
    if (tensors_.size() == kMaxSafetensorsTensors) {
      return refuse(fmt::format("is one more than the {} that a file may have", kMaxSafetensorsTensors));
    }
    const auto [first, is_new] = origins_.emplace(name, from);
    if (!is_new) {
      return refuse(fmt::format("would be called {} in the merged file, as is one of {}", quoted_for_error(name),
                                first->second.string()));
    }
    tensors_.push_back({std::string(name), tensor.dtype, tensor.shape, tensor.bytes});
    return {};
  }
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

 private:
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::filesystem::path, std::less<>> origins_;
};

}  // namespace

Status merge_safetensors(const std::vector<std::filesystem::path>& stage_files, std::string_view prefix,
                         const std::filesystem::path& out, const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsFile> files;
  Merged merged;
  for (const auto& path : stage_files) {
    auto file = SafetensorsFile::open(path);
    if (!file) return file.error();
    files.push_back(std::move(file).take());
    for (const auto& tensor : files.back().tensors()) {
      if (!tensor.name.starts_with(prefix)) continue;
      if (auto status = merged.add(tensor, std::string_view(tensor.name).substr(prefix.size()), path); !status) {
        return status;
      }
    }
  }
  if (merged.tensors().empty()) {
    return Error{fmt::format("cannot write {}: none of the {} stage files has a tensor whose name starts with \"{}\"",
                             out.string(), stage_files.size(), prefix)};
  }
  if (const auto* basis = files.front().find(kBasisInStage); basis != nullptr) {
    if (auto status = merged.add(*basis, kMergedBasis, stage_files.front()); !status) return status;
  }
  return write_safetensors(out, merged.tensors(), metadata);
}

}  // namespace thinpipe
