// thinpipe eval: how well a model predicts a given text, or the validation split of its run.
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
#include "base/say.h"
#include "base/units.h"
#include "commands.h"
#include "model_argument.h"
#include "models/evaluate.h"
#include "pipeline/run_corpus.h"
#include "text/corpus.h"
#include "text/prepare.h"
#include "text/sampler.h"
#include "text/shards.h"

namespace thinpipe {
namespace {

constexpr int64_t kLongestWindow = 2048;  // by default: some models have a context of a hundred thousand tokens

struct Measured {
  std::string text;  // what was predicted, for a person
  Evaluation evaluation;
  double text_bytes;
};

// Shows progress, on a terminal only.
void show(LiveLine& line, bool live, const Evaluation& so_far) {
  if (!live || so_far.predicted == 0 || !line.is_due()) return;
  line.show(fmt::format("{} tokens, loss {:.4f}", so_far.predicted, so_far.loss()));
}

// The windows that training's own validation pass uses, so that the two losses can be compared.
Measured of_validation_split(const ModelFiles& files, const Stage& stage, int64_t length, bool live) {
  if (!files.run) throw UserError("a Hugging Face folder has no validation split; name a text with --text FILE");
  const SystemClock clock;
  const auto corpus = [&] {
    PrepareLine line(stdout, live, clock);
    return corpus_of_run(*files.run, files.config.data, data_dir(), std::ref(line));
  }();
  const auto shard = TokenShard::open(corpus.val).take();
  shard.check_ids_below(corpus.vocab).take();
  const auto windows = static_cast<int64_t>(require_windows(shard.size(), length, "validation"));
  Evaluator evaluator(stage, length);
  LiveLine progress(stdout, live, clock);
  std::vector<int32_t> window(static_cast<size_t>(length) + 1);
  for (int64_t i = 0; i < windows; ++i) {
    read_window(shard, static_cast<uint64_t>(i), window).take();
    // A window's first token is the last one of the window before.
    evaluator.add(std::span(window).subspan(i == 0 ? 0 : 1));
    show(progress, live, evaluator.so_far());
  }
  progress.clear();
  const auto& split = corpus.manifest.val;
  const auto& result = evaluator.finish();
  // The last tokens of the split do not fill a window, so their bytes do not count.
  const double share = static_cast<double>(result.predicted + 1) / static_cast<double>(split.tokens);
  return {fmt::format("validation split of {}", files.config.data.corpus), result,
          share * static_cast<double>(split.text_bytes)};
}

// Each document begins with the begin-of-text token, as in training.
Measured of_text(const ModelFiles& files, const Stage& stage, const std::string& source, int64_t length, bool live) {
  const auto corpus = Corpus::open(source, "--text");
  auto reader = corpus.read();
  Evaluator evaluator(stage, length);
  const SystemClock clock;
  LiveLine progress(stdout, live, clock);
  double bytes = 0;
  std::string document;
  while (reader.next(document).take()) {
    auto tokens = files.tokenizer.encode(document);
    tokens.insert(tokens.begin(), files.tokenizer.bos());
    evaluator.add(tokens);
    bytes += static_cast<double>(document.size());
    show(progress, live, evaluator.so_far());
  }
  progress.clear();
  if (bytes == 0) throw UserError(fmt::format("--text {}: is empty", source));
  const auto& result = evaluator.finish();
  if (result.predicted == 0) throw UserError(fmt::format("--text {}: has no token to predict", source));
  return {source, result, bytes};
}

}  // namespace

void eval(const EvalArguments& arguments) {
  const bool live = ::isatty(STDOUT_FILENO) == 1;
  const auto files = open_model(arguments.model);
  const int64_t length = arguments.seq_len > 0 ? arguments.seq_len : std::min(files.context(), kLongestWindow);
  const auto stage = load_model(files, arguments.model.device);
  say("model: {}\n", files.title);
  std::fflush(stdout);
  const SystemClock clock;
  const auto start = clock.now();
  const auto measured = arguments.text.empty() ? of_validation_split(files, *stage, length, live)
                                               : of_text(files, *stage, arguments.text, length, live);
  const auto took_s = std::chrono::duration<double>(clock.now() - start).count();
  const auto& result = measured.evaluation;
  say("text: {}, {} tokens predicted in windows of {} ({:.0f} tokens/s)\n", measured.text, result.predicted, length,
      static_cast<double>(result.predicted) / took_s);
  say("loss {:.4f} nats/token, perplexity {:.3f}, {:.4f} bits/byte\n", result.loss(), result.perplexity(),
      result.bits_per_byte(measured.text_bytes));
  if (!arguments.json) return;
  const nlohmann::ordered_json object = {{"loss", result.loss()},
                                         {"perplexity", result.perplexity()},
                                         {"bits_per_byte", result.bits_per_byte(measured.text_bytes)},
                                         {"tokens", result.predicted},
                                         {"text_bytes", measured.text_bytes},
                                         {"seq_len", length},
                                         {"tokens_per_s", static_cast<double>(result.predicted) / took_s}};
  fmt::print("{}\n", object.dump());
}

}  // namespace thinpipe
