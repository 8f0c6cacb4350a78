// lab depth: a dense model of many blocks is cut more and more often, with lossy messages at every cut. How far are its
// gradients from those of the uncut model, and what does that cost in loss? The subspace model is cut the same way.
#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "config/config_file.h"
#include "lab/experiment.h"
#include "lab/experiments.h"
#include "pipeline/corpus_table.h"
#include "pipeline/in_process.h"
#include "pipeline/stage_worker.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;

struct DepthCodec {
  const char* name;
  std::vector<std::string> settings;
};

std::vector<DepthCodec> depth_codecs(bool quick) {
  const std::string feedback = "boundary.error_feedback=true";
  const std::vector<std::string> topk{"boundary.kind=topk", "boundary.keep=4", "boundary.pack=bf16"},
      lowrank{"boundary.kind=lowrank", "boundary.keep=4", "boundary.pack=bf16"};
  const auto with_feedback = [&](std::vector<std::string> settings) {
    settings.push_back(feedback);
    return settings;
  };
  const DepthCodec subspace{"subspace", {"model.mode=subspace", "subspace.rank=4", "boundary.pack=fp32"}};
  if (quick) return {{"int4", {"boundary.pack=int4"}}, {"topk", topk}, subspace};
  return {{"int8", {"boundary.pack=int8"}},
          {"int8 + ef", {"boundary.pack=int8", feedback}},
          {"int4", {"boundary.pack=int4"}},
          {"int4 + ef", {"boundary.pack=int4", feedback}},
          {"int2", {"boundary.pack=int2"}},
          {"int2 + ef", {"boundary.pack=int2", feedback}},
          {"topk", topk},
          {"topk + ef", with_feedback(topk)},
          {"lowrank", lowrank},
          {"lowrank + ef", with_feedback(lowrank)},
          subspace,
          {"subspace, int8", {"model.mode=subspace", "subspace.rank=4", "boundary.pack=int8"}}};
}

// One thread, also without a cut: then the subspace model's losses are the same bits for any cuts.
RunConfig depth_config(const DepthCodec& codec, int64_t cuts, bool quick) {
  std::vector<std::string> settings{"model.mode=dense",
                                    "model.d=32",
                                    "model.heads=2",
                                    fmt::format("model.blocks={}", quick ? 9 : 33),
                                    "data.vocab=1024",
                                    "train.seq_len=64",
                                    "train.microbatch=2",
                                    "train.microbatches=2",
                                    "train.eval_sequences=64",
                                    "train.threads=1",
                                    "optim.kind=adamw",
                                    "optim.lr=0.003",
                                    "boundary.pack=fp32",
                                    "subspace.full_rank_tail=1",
                                    fmt::format("train.steps={}", quick ? 20 : 300),
                                    fmt::format("train.eval_every={}", quick ? 20 : 300),
                                    fmt::format("pipeline.stages={}", cuts + 1)};
  settings.insert(settings.end(), codec.settings.begin(), codec.settings.end());
  return parse_config("", "the experiment", settings);
}

using Gradients = std::map<std::string, at::Tensor>;

// The gradients of the first step at these weights, by parameter; the model's own first weights if there are none. The
// weights are read after the step's gradients were: a step changes them.
Gradients gradients_at(const RunConfig& config, const PreparedCorpus& corpus, const Gradients& weights) {
  CorpusBatches batches(corpus, config.train);
  InProcessPipeline pipeline(config, corpus.vocab, batches, corpus_table(config, corpus).take());
  const auto each = [&](const auto& use) {
    for (int64_t i = 0; i < config.pipeline.stages; ++i) {
      for (auto& parameter : pipeline.worker(static_cast<size_t>(i)).stage().parameters().all()) use(parameter);
    }
  };
  each([&](Parameter& parameter) {
    if (const auto found = weights.find(parameter.name); found != weights.end()) parameter.value.copy_(found->second);
  });
  pipeline.step(0);
  Gradients gradients;
  each([&](Parameter& parameter) { gradients[parameter.name] = parameter.grad.to(at::kDouble); });
  return gradients;
}

// Weights after some steps of the uncut model: gradients of untrained weights say little.
Gradients trained_weights(RunConfig config, const PreparedCorpus& corpus, int64_t steps) {
  CorpusBatches batches(corpus, config.train);
  InProcessPipeline pipeline(config, corpus.vocab, batches, corpus_table(config, corpus).take());
  for (int64_t step = 0; step < steps; ++step) pipeline.step(step);
  Gradients weights;
  for (const auto& [name, value] : pipeline.weights()) weights[name] = value.clone();
  return weights;
}

// |g - exact| / |exact|, over all parameters together.
double gradient_error(const Gradients& gradients, const Gradients& exact) {
  double error = 0, size = 0;
  for (const auto& [name, grad] : exact) {
    error += (gradients.at(name) - grad).square().sum().item<double>();
    size += grad.square().sum().item<double>();
  }
  return std::sqrt(error / size);
}

struct DepthLine {
  std::string name;
  double bytes_per_token = 0;
  std::vector<double> errors;  // of the gradient, by number of cuts
  std::vector<double> above;   // the final loss minus the uncut model's

  bool in_subspace() const { return name.starts_with("subspace"); }
  bool is_lossless() const { return name == "subspace"; }
};

class Depth {
 public:
  explicit Depth(const ExperimentOptions& options)
      : quick_(options.quick),
        cuts_(quick_ ? std::vector<int64_t>{2, 8} : std::vector<int64_t>{2, 4, 8, 16, 32}),
        codecs_(depth_codecs(quick_)),
        subspace_(*std::find_if(codecs_.begin(), codecs_.end(),
                                [](const auto& codec) { return std::string(codec.name) == "subspace"; })),
        experiment_("depth", "Do the errors of lossy cuts add up as a model is cut more often?", options,
                    2 + static_cast<int64_t>(codecs_.size() * (1 + cuts_.size()))),
        corpus_(prepare_corpus(config(dense_, 0).data, data_dir())) {}

  void run() {
    for (const auto* codec : {&dense_, &subspace_}) {
      const auto curve = experiment_.train(fmt::format("{}, uncut", codec->name), config(*codec, 0), corpus_);
      uncut_loss_[codec->name] = curve.final_loss();
    }
    fmt::print("{} blocks, d = 32; loss of the uncut model: dense {:.4f}, subspace {:.4f}\n",
               config(dense_, 0).model.blocks, uncut_loss_["dense"], uncut_loss_["subspace"]);
    fmt::print("{:<16} {:>11}   error of the gradient, then loss above the uncut model's, at {} cuts\n", "",
               "bytes/token", fmt::join(cuts_, ", "));
    std::vector<DepthLine> lines;
    for (const auto& codec : codecs_) {
      lines.push_back(measure(codec));
      show(lines.back());
    }
    finish(lines);
  }

 private:
  RunConfig config(const DepthCodec& codec, int64_t cuts) const { return depth_config(codec, cuts, quick_); }
  const DepthCodec& uncut_twin(const DepthCodec& codec) const {
    return std::string(codec.name).starts_with("subspace") ? subspace_ : dense_;
  }

  Json gradient_errors(const DepthCodec& codec) {
    const auto uncut = config(uncut_twin(codec), 0);
    const auto weights = trained_weights(uncut, corpus_, weights_after());
    const auto exact = gradients_at(uncut, corpus_, weights);
    Json errors = Json::array();
    NamedTensors seen;  // with the most cuts
    for (const int64_t count : cuts_) {
      const auto gradients = gradients_at(config(codec, count), corpus_, weights);
      errors.push_back(gradient_error(gradients, exact));
      seen.clear();
      for (const auto& [name, grad] : exact) seen.emplace_back("exact." + name, grad.contiguous());
      for (const auto& [name, grad] : gradients) seen.emplace_back("topk." + name, grad.contiguous());
    }
    if (std::string(codec.name) == "topk") experiment_.dump(seen);
    return errors;
  }

  DepthLine measure(const DepthCodec& codec) {
    DepthLine line{codec.name, 0, {}, {}};
    const auto key = fmt::format("gradients at weights after {}\n{}{}", weights_after(),
                                 to_toml(config(codec, cuts_.back())), corpus_.id);
    line.errors = experiment_.part(line.name + ", gradients", key, [&] { return gradient_errors(codec); })
                      .get<std::vector<double>>();
    for (const int64_t count : cuts_) {
      const auto curve =
          experiment_.train(fmt::format("{}, {} cuts", codec.name, count), config(codec, count), corpus_);
      line.above.push_back(curve.final_loss() - uncut_loss_[uncut_twin(codec).name]);
      line.bytes_per_token = curve.bytes_per_token;
    }
    return line;
  }

  void show(const DepthLine& line) {
    fmt::print("{:<16} {:>11.1f}   {:.3g}\n{:<16} {:>11}   {:+.4f}\n", line.name, line.bytes_per_token,
               fmt::join(line.errors, "  "), "", "", fmt::join(line.above, "  "));
    experiment_.result()["codecs"].push_back({{"name", line.name},
                                              {"bytes_per_token", line.bytes_per_token},
                                              {"cuts", cuts_},
                                              {"gradient_error", line.errors},
                                              {"loss_above_uncut", line.above}});
  }

  void finish(const std::vector<DepthLine>& lines) {
    Plot errors{"error of the gradient", "cuts", "|g - exact| / |exact|", {}, true, true};
    Plot losses{"loss after training, above the uncut model's", "cuts", "nats per token", {}, true};
    double subspace_error = 0, subspace_loss = 0;
    std::string growth;
    for (const auto& line : lines) {
      Series error{line.name, {}}, loss{line.name, {}};
      for (size_t i = 0; i < cuts_.size(); ++i) {
        error.points.emplace_back(cuts_[i], std::max(line.errors[i], 1e-6));  // the axis ends there
        loss.points.emplace_back(cuts_[i], line.above[i]);
        if (!line.is_lossless()) continue;
        subspace_error = std::max(subspace_error, line.errors[i]);
        subspace_loss = std::max(subspace_loss, std::abs(line.above[i]));
      }
      errors.series.push_back(std::move(error));
      losses.series.push_back(std::move(loss));
      if (line.in_subspace()) continue;
      growth +=
          fmt::format("{}{} {:.1f}", growth.empty() ? "" : ", ", line.name, line.errors.back() / line.errors.front());
    }
    experiment_.result()["subspace_gradient_error"] = subspace_error;
    experiment_.result()["subspace_loss_above_uncut"] = subspace_loss;
    experiment_.finish(fmt::format("From {} to {} cuts the gradient's error grows by these factors: {}. The subspace's "
                                   "stays at {:.1e} and its loss within {:.1e} of the uncut model's.",
                                   cuts_.front(), cuts_.back(), growth, subspace_error, subspace_loss),
                       {errors, losses});
  }

  int64_t weights_after() const { return quick_ ? 5 : 100; }

  const bool quick_;
  const std::vector<int64_t> cuts_;
  const std::vector<DepthCodec> codecs_;
  const DepthCodec dense_{"dense", {}}, subspace_;
  Experiment experiment_;
  const PreparedCorpus corpus_;
  std::map<std::string, double> uncut_loss_;
};

}  // namespace

void lab_depth(const ExperimentOptions& options) { Depth(options).run(); }

}  // namespace thinpipe
