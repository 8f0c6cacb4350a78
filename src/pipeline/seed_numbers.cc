#include "pipeline/seed_numbers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/sha256.h"
#include "model/basis.h"
#include "model/fixed_table.h"

namespace thinpipe {

std::string seed_numbers_sha256(const RunConfig& config, int64_t vocab) {
  const auto& model = config.model;
  if (!model.is_subspace()) return "";
  Sha256 hash;
  hash.update(basis_hash(make_basis(config.train.seed, model.d, model.subspace.rank)));
  if (model.table.empty()) {
    const FixedTable table(config.train.seed, vocab, model.d, model.subspace.anchor_std, at::kFloat);
    hash.update(table.sample_hash());
  }
  return hash.hex();
}

Status check_seed_numbers(const RunConfig& config, int64_t vocab, const std::string& told) {
  if (told.empty()) return {};
  const auto here = seed_numbers_sha256(config, vocab);
  if (here == told) return {};
  return Error{fmt::format(
      "the run's seed gives a different token table or basis on this machine ({}) than on the coordinator ({})",
      here.substr(0, 12), told.substr(0, 12))};
}

}  // namespace thinpipe
