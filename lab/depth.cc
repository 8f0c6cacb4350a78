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

}  // namespace

void lab_depth(const ExperimentOptions& options) {
  const std::vector<int64_t> cuts = options.quick ? std::vector<int64_t>{2, 8} : std::vector<int64_t>{2, 4, 8, 16, 32};
  const auto all = depth_codecs(options.quick);
  Experiment experiment("depth", "Do the errors of lossy cuts add up as a model is cut more often?", options,
                        2 + static_cast<int64_t>(all.size() * (1 + cuts.size())));
  const DepthCodec dense{"dense", {}};
  const auto subspace = *std::find_if(all.begin(), all.end(),
                                      [](const DepthCodec& codec) { return std::string(codec.name) == "subspace"; });
  const auto corpus = prepare_corpus(depth_config(dense, 0, options.quick).data, data_dir());
  const int64_t weights_after = options.quick ? 5 : 100;

  std::map<std::string, double> uncut_loss;
  for (const auto* codec : {&dense, &subspace}) {
    uncut_loss[codec->name] =
        experiment.train(fmt::format("{}, uncut", codec->name), depth_config(*codec, 0, options.quick), corpus)
            .final_loss();
  }
  fmt::print("{} blocks, d = 32; loss of the uncut model: dense {:.4f}, subspace {:.4f}\n",
             depth_config(dense, 0, options.quick).model.blocks, uncut_loss["dense"], uncut_loss["subspace"]);
  fmt::print("{:<16} {:>11}   error of the gradient, then loss above the uncut model's, at", "", "bytes/token");
  for (const int64_t count : cuts) fmt::print(" {}", count);
  fmt::print(" cuts\n");

  Plot errors{"error of the gradient", "cuts", "|g - exact| / |exact|", {}, true, true};
  Plot losses{"loss after training, above the uncut model's", "cuts", "nats per token", {}, true};
  double worst_subspace_error = 0, worst_subspace_loss = 0;
  std::string growth;
  for (const auto& codec : all) {
    const bool in_subspace = std::string(codec.name).starts_with("subspace");
    const auto& reference = in_subspace ? subspace : dense;
    const auto key = fmt::format("gradients at weights after {}\n{}{}", weights_after,
                                 to_toml(depth_config(codec, cuts.back(), options.quick)), corpus.id);
    const auto found = experiment.part(fmt::format("{}, gradients", codec.name), key, [&]() -> Json {
      const auto uncut = depth_config(reference, 0, options.quick);
      const auto weights = trained_weights(uncut, corpus, weights_after);
      const auto exact = gradients_at(uncut, corpus, weights);
      Json list = Json::array();
      NamedTensors seen;
      for (const int64_t count : cuts) {
        const auto gradients = gradients_at(depth_config(codec, count, options.quick), corpus, weights);
        list.push_back(gradient_error(gradients, exact));
        seen.clear();
        for (const auto& [name, grad] : exact) seen.emplace_back("exact." + name, grad.contiguous());
        for (const auto& [name, grad] : gradients) seen.emplace_back("topk." + name, grad.contiguous());
      }
      if (std::string(codec.name) == "topk") experiment.dump(seen);  // with the most cuts
      return list;
    });
    const auto error = found.get<std::vector<double>>();
    std::vector<double> above;
    double bytes = 0;
    for (const int64_t count : cuts) {
      const auto curve = experiment.train(fmt::format("{}, {} cuts", codec.name, count),
                                          depth_config(codec, count, options.quick), corpus);
      above.push_back(curve.final_loss() - uncut_loss[reference.name]);
      bytes = curve.bytes_per_token;
    }
    Series error_line{codec.name, {}}, loss_line{codec.name, {}};
    for (size_t i = 0; i < cuts.size(); ++i) {
      error_line.points.emplace_back(cuts[i], std::max(error[i], 1e-6));
      loss_line.points.emplace_back(cuts[i], above[i]);
    }
    errors.series.push_back(error_line);
    losses.series.push_back(loss_line);
    fmt::print("{:<16} {:>11.1f}   {:.3g}\n{:<16} {:>11}   {:+.4f}\n", codec.name, bytes, fmt::join(error, "  "), "",
               "", fmt::join(above, "  "));
    experiment.result()["codecs"].push_back({{"name", codec.name},
                                             {"bytes_per_token", bytes},
                                             {"cuts", cuts},
                                             {"gradient_error", error},
                                             {"loss_above_uncut", above}});
    if (std::string(codec.name) == "subspace") {
      for (const double one : error) worst_subspace_error = std::max(worst_subspace_error, one);
      for (const double one : above) worst_subspace_loss = std::max(worst_subspace_loss, std::abs(one));
    } else if (!in_subspace) {
      growth += fmt::format("{}{} {:.1f}", growth.empty() ? "" : ", ", codec.name, error.back() / error.front());
    }
  }
  experiment.result()["subspace_gradient_error"] = worst_subspace_error;
  experiment.result()["subspace_loss_above_uncut"] = worst_subspace_loss;
  experiment.finish(fmt::format("From {} to {} cuts the gradient's error grows by these factors: {}. The subspace's "
                                "stays at {:.1e} and its loss within {:.1e} of the uncut model's.",
                                cuts.front(), cuts.back(), growth, worst_subspace_error, worst_subspace_loss),
                    {errors, losses});
}

}  // namespace thinpipe
