// thinpipe eval: how well a model predicts a text it is given, or its run's validation split.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
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

constexpr int64_t kLongestWindow = 2048;  // unless asked for: some models could look back a hundred thousand tokens

struct EvalOptions {
  ModelArgument model;
  std::string text;
  int64_t seq_len = 0;
  bool json = false;
};

struct Measured {
  std::string text;  // what was predicted, for a person
  Evaluation evaluation;
  double text_bytes;
};

// On a terminal only.
void show(LiveLine& line, bool live, const Evaluation& so_far) {
  if (!live || so_far.predicted == 0 || !line.is_due()) return;
  line.show(fmt::format("{} tokens, loss {:.4f}", so_far.predicted, so_far.loss()));
}

// The windows that training's own validation pass uses, so that the two losses can be compared.
Measured of_validation_split(const ModelFiles& files, const Stage& stage, int64_t length, bool live) {
  if (!files.run)
    throw UserError("a Hugging Face folder has no validation split of its own; name a text with --text FILE");
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
  // The split's last tokens fill no window; their bytes do not count either.
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
  if (bytes == 0) throw UserError(fmt::format("--text {}: holds no text", source));
  const auto& result = evaluator.finish();
  if (result.predicted == 0) throw UserError(fmt::format("--text {}: holds no token to predict", source));
  return {source, result, bytes};
}

void eval(const EvalOptions& options) {
  const bool live = ::isatty(STDOUT_FILENO) == 1;
  const auto files = open_model(options.model);
  const int64_t length = options.seq_len > 0 ? options.seq_len : std::min(files.context(), kLongestWindow);
  const auto stage = load_model(files, options.model.device);
  fmt::print("model: {}\n", files.title);
  std::fflush(stdout);
  const SystemClock clock;
  const auto start = clock.now();
  const auto measured = options.text.empty() ? of_validation_split(files, *stage, length, live)
                                             : of_text(files, *stage, options.text, length, live);
  const auto took_s = std::chrono::duration<double>(clock.now() - start).count();
  const auto& result = measured.evaluation;
  fmt::print("text: {}, {} tokens predicted in windows of {} ({:.0f} tokens/s)\n", measured.text, result.predicted,
             length, static_cast<double>(result.predicted) / took_s);
  fmt::print("loss {:.4f} nats/token, perplexity {:.3f}, {:.4f} bits/byte\n", result.loss(), result.perplexity(),
             result.bits_per_byte(measured.text_bytes));
  if (!options.json) return;
  const nlohmann::ordered_json object = {{"loss", result.loss()},
                                         {"perplexity", result.perplexity()},
                                         {"bits_per_byte", result.bits_per_byte(measured.text_bytes)},
                                         {"tokens", result.predicted},
                                         {"text_bytes", measured.text_bytes},
                                         {"seq_len", length},
                                         {"tokens_per_s", static_cast<double>(result.predicted) / took_s}};
  fmt::print("{}\n", object.dump());
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto options = std::make_shared<EvalOptions>();
  auto* command = app.add_subcommand("eval", "loss, perplexity and bits per byte of a model on a text");
  add_model_argument(*command, options->model, /*computes=*/true);
  command
      ->add_option("--text", options->text,
                   "a UTF-8 file, a .jsonl file or a folder of them; default: the validation split of the run")
      ->type_name("FILE");
  command->add_option("--seq-len", options->seq_len, "tokens per window; default: the model's context, at most 2048")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command->add_flag("--json", options->json, "one JSON object on the last line");
  command->footer(
      "Examples:\n  thinpipe eval                           the newest run, on its own validation split\n"
      "  thinpipe eval my-run --step 100         an earlier checkpoint of a run\n"
      "  thinpipe eval my-run --text book.txt    on a text of yours\n"
      "  thinpipe eval ./llama-hf --text book.txt\n"
      "A token's loss is in nats; bits per byte compare models with different tokenizers.");
  command->callback([options] { eval(*options); });
}

}  // namespace thinpipe
