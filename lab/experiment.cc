#include "lab/experiment.h"

#include "base/files.h"
#include "base/result.h"
#include "base/units.h"
#include "config/config_file.h"

namespace thinpipe {

using Json = nlohmann::ordered_json;

Experiment::Experiment(std::string name, const std::string& question, const ExperimentOptions& options, int64_t parts)
    : name_(std::move(name)), options_(options), parts_(parts), start_(clock_.now()) {
  fmt::print("{}\n\n", question);
  std::fflush(stdout);
  result_ = {{"experiment", name_}, {"question", question}, {"quick", options.quick}, {"answer", ""}};
}

void Experiment::show_progress(const std::string& what) {
  const double spent_s = seconds(clock_.now() - start_);
  std::string left = "";
  if (made_ > 0 && done_ < parts_) {
    const double left_s = spent_s / static_cast<double>(made_) * static_cast<double>(parts_ - done_);
    left = ", " + format_duration(std::chrono::round<std::chrono::seconds>(std::chrono::duration<double>(left_s))) +
           " left";
  }
  fmt::print(stderr, "{}: {} of {} done ({}){}\n", name_, done_, parts_, what, left);
}

Json Experiment::part(const std::string& what, const std::string& key, const std::function<Json()>& make) {
  const auto counted = [&] {
    ++made_;
    return make();
  };
  auto value = dumps() ? counted() : kept_or_made(name_, key, counted);
  ++done_;
  show_progress(what);
  return value;
}

void Experiment::dump(const NamedTensors& tensors) const {
  if (!dumps()) return;
  make_directories(options_.dump).take();
  save_tensors(std::filesystem::path(options_.dump) / (name_ + ".safetensors"), tensors).take();
}

Curve Experiment::train(const std::string& what, const RunConfig& config, const PreparedCorpus& corpus) {
  return curve_from(part(what, to_toml(config) + corpus.id, [&] { return to_json(train_curve(config, corpus)); }));
}

void Experiment::finish(const std::string& answer, const std::vector<Plot>& plots) {
  result_["answer"] = answer;
  fmt::print("\n{}\n", answer);
  if (!options_.svg.empty()) write_file_atomically(options_.svg, to_svg(plots)).take();
  if (options_.json) fmt::print("{}\n", result_.dump());
  std::fflush(stdout);
}

}  // namespace thinpipe
