#include "run/begin_run.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "base/sha256.h"
#include "config/config_file.h"
#include "pipeline/batches.h"
#include "pipeline/run_corpus.h"
#include "pipeline/run_folder.h"
#include "pipeline/stage_worker.h"
#include "pipeline/table_file.h"
#include "run/coordinator/run_store.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

// How far U^T U may be from the identity. A basis computed in float64 is nearer than this. One that was rounded to
// float32 on its way is not, and would cost exactness.
constexpr double kOrthonormal = 1e-9;

std::string shape_text(at::IntArrayRef shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

Status check_basis(const ModelConfig& model, const at::Tensor& basis) {
  if (!model.is_subspace()) {
    return basis.defined() ? Status(Error{"a dense model has no basis, and one was given"}) : Status();
  }
  if (!basis.defined()) return Error{"a subspace model needs its basis"};
  const std::vector<int64_t> shape{model.d, model.subspace.rank};
  if (basis.sizes() != at::IntArrayRef(shape) || basis.scalar_type() != at::kDouble) {
    return Error{fmt::format("the basis is {} of {}, needs {} of Double", shape_text(basis.sizes()),
                             at::toString(basis.scalar_type()), shape_text(shape))};
  }
  const auto gram = basis.t().mm(basis) - at::eye(model.subspace.rank, basis.options());
  const double off = gram.abs().max().item<double>();
  if (!(off <= kOrthonormal)) {  // also when it is not a number
    return Error{fmt::format("the basis is not orthonormal: U^T U is {:.1e} from the identity", off)};
  }
  return {};
}

Status check_table(const RunConfig& config, int64_t vocab, const at::Tensor& table) {
  const auto& model = config.model;
  if (!table.defined()) {
    if (model.table.empty()) return {};
    return Error{fmt::format("model.table = \"{}\": the table was not given", model.table)};
  }
  if (!model.is_subspace()) return Error{"a dense model has no token table, and one was given"};
  const std::vector<int64_t> shape{vocab, model.d};
  if (table.sizes() != at::IntArrayRef(shape) || table.scalar_type() != at::kFloat) {
    return Error{fmt::format("the token table is {} of {}, needs {} of Float", shape_text(table.sizes()),
                             at::toString(table.scalar_type()), shape_text(shape))};
  }
  return at::isfinite(table).all().item<bool>() ? Status() : Error{"the token table holds numbers that are not finite"};
}

// The given parameters by name; hands out each once.
class Given {
 public:
  Status take_in(const NamedTensors& parameters) {
    for (const auto& [name, tensor] : parameters) {
      if (!by_name_.emplace(name, &tensor).second) return Error{fmt::format("parameter '{}' is given twice", name)};
    }
    return {};
  }
  Status fill(Parameter& parameter) {
    const auto found = by_name_.find(parameter.name);
    if (found == by_name_.end()) return Error{fmt::format("parameter '{}' is not given", parameter.name)};
    const at::Tensor& tensor = *found->second;
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.sizes() != parameter.value.sizes()) {
      return Error{fmt::format(
          "parameter '{}' is {}, needs {} of a floating type", parameter.name,
          tensor.defined() ? shape_text(tensor.sizes()) + " of " + at::toString(tensor.scalar_type()) : "undefined",
          shape_text(parameter.value.sizes()))};
    }
    parameter.value.copy_(tensor);
    if (!at::isfinite(parameter.value).all().item<bool>()) {
      return Error{fmt::format("parameter '{}' holds numbers that are not finite", parameter.name)};
    }
    by_name_.erase(found);
    return {};
  }
  Status nothing_is_left() const {
    if (by_name_.empty()) return {};
    return Error{fmt::format("parameter '{}' is not one of this model", by_name_.begin()->first)};
  }

 private:
  std::map<std::string, const at::Tensor*> by_name_;
};

// Builds the run in `work`, a folder that nobody else uses yet.
class FirstCheckpoint {
 public:
  FirstCheckpoint(fs::path work, const RunConfig& config, const PreparedCorpus& corpus, const FirstWeights& weights)
      : work_(std::move(work)), config_(config), corpus_(corpus), weights_(weights), run_(new_run_id()) {}

  Status write() {
    CheckpointStore store(work_ / "checkpoints", run_);
    CheckpointManifest manifest;
    manifest.run = run_;
    manifest.corpus_id = corpus_.id;
    Given given;
    TRY(given.take_in(weights_.parameters));
    std::map<std::string, CheckpointFile> files;
    for (int64_t stage = 0; stage < config_.pipeline.stages; ++stage) {
      TRY(write_stage(static_cast<size_t>(stage), given, store, manifest, files));
    }
    TRY(given.nothing_is_left());
    for (const auto& unit : model_units(config_.model, whole_model(config_.model))) {
      manifest.files.push_back(std::move(files.at(unit)));
    }
    return store.commit(manifest);
  }
  const std::string& run() const { return run_; }

 private:
  // Writes one stage at a time: the whole model may not fit into memory.
  Status write_stage(size_t stage, Given& given, CheckpointStore& store, CheckpointManifest& manifest,
                     std::map<std::string, CheckpointFile>& files) {
    auto config = config_;
    config.train.device = "cpu";
    StageWorker worker(config, corpus_.vocab, stage_place(config, stage), nullptr, weights_.table);
    for (auto& parameter : worker.stage().parameters().all()) TRY(given.fill(parameter));
    if (auto* side = worker.stage().subspace()) side->set_basis({weights_.basis, 0});
    manifest.basis_hash = worker.current_basis_hash();
    for (auto& unit : worker.state()) {
      unit.metadata["run"] = run_;
      const auto path = work_ / unit_file_name(unit.unit);
      TRY(save_tensors(path, unit.tensors, unit.metadata));
      files[unit.unit] = TRY(store.receive_copy({0, 0}, unit.unit, path));
      TRY(remove_tree(path));
    }
    return {};
  }

  const fs::path work_;
  const RunConfig& config_;
  const PreparedCorpus& corpus_;
  const FirstWeights& weights_;
  const std::string run_;
};

Status write_store(const fs::path& work, const std::string& run, const PreparedCorpus& corpus,
                   const std::string& origin) {
  auto store = TRY(RunStore::open(work / "run.sqlite"));
  for (const auto& [name, value] : {std::pair{"run", run}, {"corpus", corpus.id}, {"begun_from", origin}}) {
    TRY(store.set(name, value));
  }
  return {};
}

Status write_run(const fs::path& work, RunConfig config, const PreparedCorpus& corpus, const FirstWeights& weights,
                 const std::string& origin) {
  if (weights.table.defined()) config.model.table = TRY(save_table(work, weights.table));
  FirstCheckpoint checkpoint(work, config, corpus, weights);
  TRY(checkpoint.write());
  TRY(write_store(work, checkpoint.run(), corpus, origin));
  TRY(keep_corpus(work, corpus));
  TRY(write_file_atomically(work / "origin.txt", origin + "\n"));
  return write_file_atomically(work / "config.toml", to_toml(config));
}

}  // namespace

Result<fs::path> begin_run_from(const fs::path& folder, const RunConfig& config, const PreparedCorpus& corpus,
                                const FirstWeights& weights, const std::string& origin) {
  validate(config);
  TRY(check_basis(config.model, weights.basis));
  TRY(check_table(config, corpus.vocab, weights.table));
  auto run = TRY(folder.empty() ? AtomicFolder::create_new(data_dir() / "runs", new_run_name())
                                : AtomicFolder::create(folder));
  if (run.is_taken()) return Error{fmt::format("{} is not empty; give another folder", run.target().string())};
  TRY(write_run(run.path(), config, corpus, weights, one_line(origin)));
  TRY(run.commit());
  return run.target();
}

}  // namespace thinpipe
