#include "run/worker/held_stage.h"

#include <fmt/format.h>
#include <malloc.h>

#include "base/log.h"
#include "pipeline/table_file.h"
#include "run/worker/remote_batches.h"
#include "text/prepared.h"

namespace thinpipe {
namespace {

// Uses the run's prepared corpus if this machine has it, else asks the coordinator.
std::unique_ptr<Batches> token_source(const StageSources& sources) {
  if (const auto corpus = prepared_with_id(sources.run.corpus_id(), sources.corpora))
    return std::make_unique<CorpusBatches>(*corpus, sources.config.train);
  log_info("there is no copy of the corpus here: token windows come from the coordinator");
  return std::make_unique<RemoteBatches>(sources.coordinator, sources.run.run(), sources.config.train,
                                         sources.run.vocab());
}

// Returns T_fixed if the config names a file for it: from this worker's copy, else from the coordinator.
Result<at::Tensor> token_table(const StageSources& sources, StateFiles& files) {
  constexpr uint64_t kMostHeaderBytes = 1 << 20;
  const auto& [coordinator, run, config, folder, corpora, progress] = sources;
  auto mine = table_of_run(folder, config, run.vocab());
  if (mine || !run.has_table()) return mine;
  const auto& file = run.table();
  const auto rows_bytes = static_cast<uint64_t>(run.vocab()) * static_cast<uint64_t>(config.model.d) * sizeof(float);
  if (file.bytes() < rows_bytes || file.bytes() > rows_bytes + kMostHeaderBytes) {
    return Error{fmt::format("the coordinator's token table has {} bytes, where {} x {} numbers are needed",
                             file.bytes(), run.vocab(), config.model.d)};
  }
  TRY(files.fetch_to(file, table_path(folder, config.model.table)));
  return table_of_run(folder, config, run.vocab());
}

}  // namespace

HeldStage::HeldStage(const control::Form& form, const StageSources& sources)
    : config_(sources.config), stage_(form.seat().stage()) {
  config_.pipeline.auto_cuts = false;
  config_.pipeline.cuts.assign(form.cuts().begin(), form.cuts().end());
  if (stage_ == 0) tokens_ = token_source(sources);
}

HeldStage::~HeldStage() {
  tokens_.reset();
  worker_.reset();
  ::malloc_trim(0);  // freed tensors stay with the process otherwise (model/stage.cc), which may wait for long now
}

Result<std::unique_ptr<HeldStage>> HeldStage::make(const control::Form& form, const StageSources& sources,
                                                   StateFiles& files) {
  std::unique_ptr<HeldStage> held(new HeldStage(form, sources));
  const auto units = TRY(files.fetch({form.files().begin(), form.files().end()}));
  if (units.empty() && form.step() != 0) {
    return Error{fmt::format("was told to begin at step {} without the files of its state", form.step())};
  }
  const auto table = TRY(token_table(sources, files));
  held->worker_ = std::make_unique<StageWorker>(held->config_, sources.run.vocab(),
                                                stage_place(held->config_, static_cast<size_t>(held->stage_)),
                                                held->tokens(), table);
  held->worker_->show_progress(sources.progress);
  if (!units.empty()) TRY(held->worker_->restore(units, form.step()));
  return held;
}

std::vector<std::string> HeldStage::saved_units() const {
  return thinpipe::saved_units(config_.model, blocks_of_stage(config_, stage_));
}

}  // namespace thinpipe
