#include "pipeline/table_file.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.h"
#include "base/sha256.h"
#include "model/fixed_table.h"
#include "pipeline/tensor_file.h"

namespace thinpipe {
namespace {

constexpr const char* kName = "t_fixed";

}  // namespace

Result<at::Tensor> load_table(const std::filesystem::path& path, const RunConfig& config, int64_t vocab) {
  const auto& hash = config.model.table;
  TP_CHECK(!hash.empty(), "the config names no token table");
  const auto refuse = [&](const std::string& reason) {
    return Error{fmt::format("token table {}: {}", path.string(), reason)};
  };
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return refuse("is missing, but model.table names it");
  }
  const auto file = TRY(SafetensorsFile::open(path));
  const auto* entry = file.find(kName);
  if (entry == nullptr || file.tensors().size() != 1) {
    return refuse(fmt::format("needs exactly one tensor, '{}'", kName));
  }
  const std::vector<int64_t> shape{vocab, config.model.d};
  if (entry->dtype != Dtype::kF32 || entry->shape != shape) {
    return refuse(fmt::format("is [{}] of {}, needs [{}] of F32", fmt::join(entry->shape, ", "),
                              dtype_name(entry->dtype), fmt::join(shape, ", ")));
  }
  const auto found =
      sha256_hex({reinterpret_cast<const char*>(entry->bytes.data()), static_cast<size_t>(entry->bytes.size())});
  if (found != hash) return refuse(fmt::format("its rows have the hash {}, model.table says {}", found, hash));
  return tensor_from(file, kName);
}

Result<at::Tensor> table_of_run(const std::filesystem::path& folder, const RunConfig& config, int64_t vocab) {
  const auto& hash = config.model.table;
  if (hash.empty()) return at::Tensor();
  return load_table(table_path(folder, hash), config, vocab);
}

Status bring_table(const std::filesystem::path& folder, const RunConfig& config, const std::filesystem::path& other) {
  const auto& hash = config.model.table;
  const auto from = table_path(other, hash), to = table_path(folder, hash);
  std::error_code ignored;
  if (hash.empty() || std::filesystem::exists(to, ignored) || !std::filesystem::exists(from, ignored)) return {};
  const auto bytes = TRY(read_file(from));
  TRY(make_directories(to.parent_path()));
  return write_file_atomically(to, bytes);
}

Result<std::string> save_table(const std::filesystem::path& folder, const at::Tensor& table) {
  const auto hash = FixedTable(table, table.options()).hash();
  const auto path = table_path(folder, hash);
  TRY(make_directories(path.parent_path()));
  TRY(save_tensors(path, {{kName, table}}));
  return hash;
}

}  // namespace thinpipe
