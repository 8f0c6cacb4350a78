#include "config/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/line.h"

namespace thinpipe {
namespace {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
// A guard against division by 0 must not itself be 0 in float32 or bf16.
constexpr double kLeastEps = 1e-30;

// What a value must be: in words that complete "needs ...", and as a test.
struct Rule {
  std::string needs;
  std::function<bool(const KeyValue&)> accepts;
  std::vector<std::string> words = {};  // Key::words
};

// A rule for a key that holds a T: `test` gets its value.
template <class T, class Test>
Rule for_a(std::string needs, Test test, std::vector<std::string> words = {}) {
  return {std::move(needs), [test](const KeyValue& value) { return test(std::get<T>(value)); }, std::move(words)};
}

Rule whole(int64_t low, int64_t high) {
  return for_a<int64_t>(fmt::format("a whole number from {} to {}", low, high),
                        [=](int64_t number) { return low <= number && number <= high; });
}

Rule above(double low, double high) {
  return for_a<double>(fmt::format("a number above {} and at most {}", low, high),
                       [=](double number) { return low < number && number <= high; });
}

Rule from(double low, double high) {
  return for_a<double>(fmt::format("a number from {} to {}", low, high),
                       [=](double number) { return low <= number && number <= high; });
}

Rule from_to_below(double low, double high) {
  return for_a<double>(fmt::format("a number from {} to below {}", low, high),
                       [=](double number) { return low <= number && number < high; });
}

Rule truth() {
  return for_a<bool>("true or false", [](bool) { return true; }, {"true", "false"});
}

Rule text() {
  return for_a<std::string>("text", [](const std::string&) { return true; });
}

Rule some_text() {
  return for_a<std::string>("text that is not empty", [](const std::string& value) { return !value.empty(); });
}

Rule table_source() {
  const auto test = [](const std::string& text) {
    const bool hash = text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
    return text.empty() || text == kTableFromCorpus || hash;
  };
  return for_a<std::string>("\"corpus\", empty text, or 64 lower-case hex digits", test, {kTableFromCorpus});
}

Rule device() {
  const auto test = [](std::string_view name) {
    if (name == "cpu" || name == "cuda") return true;
    if (!name.starts_with("cuda:")) return false;
    name.remove_prefix(5);
    return !name.empty() && name.size() <= 3 && name.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return for_a<std::string>("\"cpu\", \"cuda\" or \"cuda:N\" with N from 0 to 999", test, {"cpu", "cuda"});
}

Rule list_of_whole(int64_t low, int64_t high, size_t most) {
  return for_a<std::vector<int64_t>>(
      fmt::format("a list of at most {} whole numbers from {} to {}", most, low, high),
      [=](const std::vector<int64_t>& numbers) {
        return numbers.size() <= most && std::all_of(numbers.begin(), numbers.end(),
                                                     [=](int64_t number) { return low <= number && number <= high; });
      });
}

// `rule`, or this word as text instead.
Rule or_word(const std::string& word, const Rule& rule) {
  return {fmt::format("{}, or \"{}\"", rule.needs, word),
          [word, rule](const KeyValue& value) {
            const auto* text = std::get_if<std::string>(&value);
            return text != nullptr ? *text == word : rule.accepts(value);
          },
          {word}};
}

template <class E>
Rule one_of() {
  std::string needs;
  for (const auto word : kWords<E>) {
    if (!needs.empty()) needs += word == kWords<E>.back() ? " or " : ", ";
    needs += fmt::format("\"{}\"", word);
  }
  const auto test = [](const std::string& word) {
    E ignored{};
    return enum_from_name(word, &ignored);
  };
  return for_a<std::string>(needs, test, {kWords<E>.begin(), kWords<E>.end()});
}

template <class T>
KeyValue to_value(const T& field) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(enum_name(field));
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return static_cast<int64_t>(field);  // TOML has only int64; larger values turn negative and are refused
  } else {
    return field;
  }
}

template <class T>
void from_value(const KeyValue& value, T& field) {
  if constexpr (std::is_enum_v<T>) {
    enum_from_name(std::get<std::string>(value), &field);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    field = static_cast<uint64_t>(std::get<int64_t>(value));
  } else {
    field = std::get<T>(value);
  }
}

struct Table {
  std::vector<Section> sections;
  std::vector<Key> keys;
};

// Adds keys of one section: `add("d", &ModelConfig::d, whole(1, 65536), "width")`. A function finds the section in the
// config, `[](auto& config) -> auto& { return config.model; }`, because a section may lie inside another one.
template <class Find>
class SectionKeys {
 public:
  using Fields = std::remove_cvref_t<std::invoke_result_t<Find, RunConfig&>>;

  SectionKeys(Table& table, const std::string& name, Find find, const std::string& help)
      : table_(table), name_(name), find_(find) {
    table_.sections.push_back({name, help});
  }

  template <class T>
  void operator()(const std::string& name, T Fields::*field, const Rule& rule, const std::string& help,
                  const std::string& absent_help = "", const std::function<void(RunConfig&)>& when_absent = nullptr) {
    const auto find = find_;
    table_.keys.push_back({
        .section = name_,
        .name = name,
        .type = static_cast<KeyType>(to_value(T{}).index()),
        .needs = rule.needs,
        .help = help,
        .accepts = rule.accepts,
        .get = [find, field](const RunConfig& config) { return to_value(find(config).*field); },
        .set = [find, field](RunConfig& config, const KeyValue& value) { from_value(value, find(config).*field); },
        .absent_help = absent_help,
        .when_absent = when_absent,
        .words = rule.words,
        .word = "",
    });
  }

  // Lets the key added last also be `word`, which sets `flag` and empties `field`.
  template <class T>
  void or_else(const std::string& word, bool Fields::*flag, T Fields::*field) {
    const auto find = find_;
    Key& key = table_.keys.back();
    const Rule rule = or_word(word, {key.needs, key.accepts});
    key.needs = rule.needs;
    key.accepts = rule.accepts;
    key.words = rule.words;
    key.word = word;
    key.get = [find, word, flag, field](const RunConfig& config) -> KeyValue {
      if (find(config).*flag) return word;
      return to_value(find(config).*field);
    };
    key.set = [find, flag, field](RunConfig& config, const KeyValue& value) {
      auto& section = find(config);
      section.*flag = std::holds_alternative<std::string>(value);
      section.*field = {};
      if (!(section.*flag)) from_value(value, section.*field);
    };
  }

 private:
  Table& table_;
  std::string name_;
  Find find_;
};

void add_model(Table& table) {
  using C = ModelConfig;
  SectionKeys add(
      table, "model", [](auto& config) -> auto& { return config.model; }, "The transformer.");
  add("mode", &C::mode, one_of<ModelMode>(),
      "type of model: a dense LLaMA, or one whose residual stream stays in a shared subspace");
  add("recipe", &C::recipe, one_of<Recipe>(),
      "the defaults of a subspace model; llama: it can be exported as a plain LLaMA; fast: it reaches a loss in fewer "
      "steps, with token tables per stage, and can be exported for transformers only");
  add("d", &C::d, whole(1, 65536), "width of the residual stream");
  add("blocks", &C::blocks, whole(1, 4096), "number of transformer blocks, L");
  add("heads", &C::heads, whole(1, 1024), "number of query heads; must divide d");
  add("kv_heads", &C::kv_heads, whole(1, 1024), "number of key/value heads; must divide heads", "the value of heads",
      [](RunConfig& config) { config.model.kv_heads = config.model.heads; });
  add("mlp_width", &C::mlp_width, whole(1, 1 << 20), "inner width of SwiGLU", "8/3 d, rounded up to a multiple of 32",
      [](RunConfig& config) { config.model.mlp_width = default_mlp_width(config.model.d); });
  add("positions", &C::positions, one_of<Positions>(), "position encoding");
  add("rope_base", &C::rope_base, above(0, 1e12), "base of the rotary frequencies");
  add("position_scale", &C::position_scale, from(0, 100),
      "factor on sinusoidal positions, whose root mean square is 0.71 without it");
  add("qk_norm", &C::qk_norm, truth(), "normalise queries and keys before attention");
  add("norm_eps", &C::norm_eps, from(kLeastEps, 1), "added to the mean square in every norm");
  add("init_std", &C::init_std, above(0, 10), "standard deviation of the initial weights");
  add("table", &C::table, table_source(),
      "where the token table comes from, which a subspace model keeps and a dense one starts its embedding with; "
      "corpus: from the training text, when the run begins; empty: random numbers; SHA-256 of its rows: the file "
      "tables/HASH.safetensors in the run's folder (docs/checkpoints.md)",
      "`corpus` for a subspace model, else empty",
      [](RunConfig& config) { config.model.table = config.model.is_subspace() ? kTableFromCorpus : ""; });
}

void add_data(Table& table) {
  using C = DataConfig;
  SectionKeys add(
      table, "data", [](auto& config) -> auto& { return config.data; }, "The text and how it becomes tokens.");
  add("corpus", &C::corpus, some_text(),
      "`kjv`, or the path of a text file, a .jsonl file, or a folder of both; also compressed, as .gz or .zst");
  add("tokenizer", &C::tokenizer, text(),
      "path of a sentencepiece .model; empty: a tokenizer is trained on the corpus");
  add("vocab", &C::vocab, whole(260, 1 << 24),
      "vocabulary size of the tokenizer to train; if data.tokenizer is given, must be the size of that one");
  add("val_fraction", &C::val_fraction, above(0, 0.5), "fraction of the documents that is kept for validation");
  add("encoding", &C::encoding, one_of<Encoding>(),
      "encoding of the text files; auto: for each file UTF-16 if it looks like it, UTF-8 if all of it is valid, else "
      "latin-1");
  add("invalid", &C::invalid, one_of<Invalid>(),
      "what to do about bytes that are invalid in this encoding: refuse the file, put U+FFFD in their place, or skip "
      "them; their number is printed");
  add("field", &C::field, some_text(), "the field of a line of a .jsonl file that holds the document");
}

// tokens of a run = steps x microbatches x microbatch x seq_len: the bounds keep it below 2^62.
void add_train(Table& table) {
  using C = TrainConfig;
  SectionKeys add(
      table, "train", [](auto& config) -> auto& { return config.train; },
      "Length of the run, batch sizes, seed, precision and device.");
  add("steps", &C::steps, whole(0, 10'000'000), "number of optimizer steps");
  add("seq_len", &C::seq_len, whole(1, 65536), "tokens per sequence, T");
  add("microbatch", &C::microbatch, whole(1, 4096), "sequences per microbatch, B");
  add("microbatches", &C::microbatches, whole(1, 1024), "microbatches per step, M");
  add("seed", &C::seed, whole(0, kInt64Max), "seed of the initial weights and of the order of the data");
  add("precision", &C::precision, one_of<Precision>(),
      "number format of the computation; bf16 keeps float32 weights and moments and rounds the operands of products "
      "with weights (docs/model.md)");
  add("device", &C::device, device(), "device to compute on");
  add("threads", &C::threads, whole(0, 4096), "compute threads per stage; 0: one per core of the machine");
  add("recompute", &C::recompute, one_of<Recompute>(),
      "block: keep only the input of each block for the backward pass and compute the rest again, to the same bits; "
      "less memory, more time");
  add("eval_every", &C::eval_every, whole(0, 10'000'000), "steps between validation passes; 0: only at the end");
  add("sample_every", &C::sample_every, whole(0, 10'000'000),
      "steps between samples of the model's text, each from the next checkpoint; 0: only at the end");
  add("eval_sequences", &C::eval_sequences, whole(1, 1 << 20),
      "sequences per validation pass; the last pass uses the whole validation split");
}

void add_optim(Table& table) {
  using C = OptimConfig;
  SectionKeys add(
      table, "optim", [](auto& config) -> auto& { return config.optim; },
      "The optimizer. `muon` updates the matrices of the blocks with Muon and everything else with AdamW. `adamw` "
      "updates everything with AdamW. `row_adamw` updates the subspace's coordinates with row-wise AdamW and the rest "
      "with AdamW.");
  add("kind", &C::kind, one_of<OptimizerKind>(), "optimizer of the matrices of the blocks");
  add("lr", &C::lr, above(0, 100),
      "peak learning rate of the matrices of the blocks; with kind = \"adamw\" or \"row_adamw\", of all parameters");
  add("adamw_lr", &C::adamw_lr, above(0, 100),
      "peak learning rate of the parameters that Muon does not update; used with kind = \"muon\" only");
  add("embedding_lr_scale", &C::embedding_lr_scale, above(0, 1e6),
      "factor on adamw_lr for the embedding; used with kind = \"muon\" only");
  add("beta1", &C::beta1, from_to_below(0, 1), "AdamW: decay of the first moment");
  add("beta2", &C::beta2, from_to_below(0, 1), "AdamW: decay of the second moment");
  add("eps", &C::eps, from(kLeastEps, 1), "AdamW: prevents division by 0");
  add("momentum", &C::momentum, from_to_below(0, 1), "Muon: momentum");
  add("state", &C::state, one_of<StateFormat>(),
      "number format of the optimizer's moments; full: that of the weights; bf16: half of its memory and of its share "
      "of checkpoints, rounded stochastically, so that small changes add up");
  add("weight_decay", &C::weight_decay, from(0, 100),
      "decoupled weight decay; applies to matrices and embeddings, never to gains");
  add("clip", &C::clip, from(0, 1e9), "maximum global gradient norm; 0: no clipping");
  add("schedule", &C::schedule, one_of<LrSchedule>(), "shape of the learning rate after the warm-up");
  add("warmup", &C::warmup, whole(0, 10'000'000), "steps of linear warm-up");
  add("decay_fraction", &C::decay_fraction, from(0, 1),
      "wsd: the learning rate falls linearly in this last fraction of the steps");
  add("min_lr_ratio", &C::min_lr_ratio, from(0, 1),
      "cosine, linear and wsd: final learning rate as a fraction of the peak");
}

void add_pipeline(Table& table) {
  using C = PipelineConfig;
  SectionKeys add(
      table, "pipeline", [](auto& config) -> auto& { return config.pipeline; },
      "How the blocks are divided into stages.");
  add("stages", &C::stages, whole(1, 4096), "number of stages; at most one per block",
      "the length of pipeline.cuts if given, else min(4, model.blocks)", [](RunConfig& config) {
        const auto cuts = static_cast<int64_t>(config.pipeline.cuts.size());
        config.pipeline.stages = cuts > 0 ? cuts : std::min<int64_t>(4, config.model.blocks);
      });
  add("cuts", &C::cuts, list_of_whole(1, 4096, 4096),
      "blocks per stage, summing to model.blocks; empty: evenly divided, the first stages hold the remainder; auto: "
      "divided by the speed and memory of the machines, evenly until these are known");
  add.or_else("auto", &C::auto_cuts, &C::cuts);
  add("schedule", &C::schedule, one_of<ScheduleKind>(), "order of the forward and backward passes in a step");
}

// Comes after the pipeline, because anchor groups default to the cuts.
void add_subspace(Table& table) {
  using C = SubspaceConfig;
  SectionKeys add(
      table, "subspace", [](auto& config) -> auto& { return config.model.subspace; },
      "The shared subspace. Used with model.mode = \"subspace\" only.");
  add("rank", &C::rank, whole(1, 65536), "dimensions of the subspace, k; at most model.d");
  add("full_rank_tail", &C::full_rank_tail, whole(0, 4096),
      "number of blocks at the end with dense output projections, n; the last stage must hold all of them",
      "2 if there are at least 5 blocks, else 1",
      [](RunConfig& config) { config.model.subspace.full_rank_tail = config.model.blocks >= 5 ? 2 : 1; });
  add("anchors", &C::anchors, one_of<Anchors>(),
      "fixed: one frozen token table that all stages share; stage: a trainable table per group of blocks",
      "`stage` with model.recipe = \"fast\", else `fixed`", [](RunConfig& config) {
        config.model.subspace.anchors = config.model.is_fast() ? Anchors::kStage : Anchors::kFixed;
      });
  add("anchor_groups", &C::anchor_groups, list_of_whole(1, 4096, 4096),
      "blocks per trainable table; other cuts may join groups later, but not split one",
      "the cuts if anchors = \"stage\", else empty", [](RunConfig& config) {
        if (config.model.is_subspace() && config.model.subspace.anchors == Anchors::kStage &&
            config.pipeline.stages <= config.model.blocks) {
          config.model.subspace.anchor_groups = blocks_per_stage(config);
        }
      });
  add("previous", &C::previous, one_of<Previous>(),
      "what the anchor says about the previous token; table: its row of a second trainable table, with anchors = "
      "\"stage\" only",
      "`table` with model.recipe = \"fast\" and anchors = \"stage\", else `none`", [](RunConfig& config) {
        auto& subspace = config.model.subspace;
        const bool both = config.model.is_fast() && subspace.anchors == Anchors::kStage;
        subspace.previous = both ? Previous::kTable : Previous::kNone;
      });
  add("anchor_rank", &C::anchor_rank, whole(0, 65536),
      "rank of the trainable tables of anchors = \"stage\", at most model.d; each is then V x rank numbers and rank x "
      "d, and the token's is added to the frozen table; 0: tables of V x d");
  add("anchor_std", &C::anchor_std, above(0, 1000), "standard deviation of the token table");
  add("input", &C::input, one_of<InputForm>(), "how blocks read the stream; auto: whichever costs less per microbatch");
  add("zero_init", &C::zero_init, truth(), "start the output coordinates at 0");
  add("update_every", &C::update_every, whole(0, 10'000'000), "steps between updates of the subspace; 0: never");
  add("update_rate", &C::update_rate, above(0, 1e6), "step size of these updates, alpha");
}

void add_boundary(Table& table) {
  using C = BoundaryConfig;
  SectionKeys add(
      table, "boundary", [](auto& config) -> auto& { return config.boundary; }, "What stages send to each other.");
  add("kind", &C::kind, one_of<BoundaryKind>(),
      "stream: the whole stream; for comparison, in dense models: topk: the largest numbers of each token; lowrank: a "
      "product of two thin matrices");
  add("pack", &C::pack, one_of<Pack>(),
      "number format of the activations and gradients that are sent (docs/wire.md); int formats have a scale per token",
      "`int8` for a subspace model, `fp32` for a dense one",
      [](RunConfig& config) { config.boundary.pack = config.model.is_subspace() ? Pack::kInt8 : Pack::kFp32; });
  add("keep", &C::keep, whole(1, 65536), "numbers per token that topk sends, or the rank of lowrank");
  add("error_feedback", &C::error_feedback, truth(),
      "add what a message lost by its pack or kind to the next message of the same cut and direction");
}

void add_link(Table& table) {
  using C = LinkConfig;
  SectionKeys add(
      table, "link", [](auto& config) -> auto& { return config.link; },
      "How much the links between stages are slowed down, for runs on one machine. A value applies to all cuts, or is "
      "a list with one entry per cut (`\"80mbit, 20mbit\"`); an entry may be forward/backward (`\"80mbit/10mbit\"`).");
  add("rate", &C::rate, some_text(), "bandwidth, for example `80mbit`, or `unlimited`; counts all bytes of a packet");
  add("delay", &C::delay, some_text(), "time from a packet's last byte sent to its arrival, for example `25ms`");
  add("jitter", &C::jitter, some_text(), "extra random delay per packet, from 0 to this; packets stay in order");
}

void add_checkpoint(Table& table) {
  using C = CheckpointConfig;
  SectionKeys add(
      table, "checkpoint", [](auto& config) -> auto& { return config.checkpoint; },
      "When checkpoints are written and how many are kept (docs/checkpoints.md).");
  add("every", &C::every, whole(0, 10'000'000), "steps between checkpoints; 0: only when the run ends or is stopped");
  add("keep_last", &C::keep_last, whole(1, 1'000'000), "number of newest checkpoints to keep");
  add("keep_every", &C::keep_every, whole(0, 10'000'000),
      "also keep the checkpoints of steps divisible by this; 0: none");
  add("mode", &C::mode, one_of<CheckpointMode>(),
      "async: write a copy in memory during the next steps; sync: write before the next step; auto: async if there is "
      "enough memory");
}

void add_cluster(Table& table) {
  using C = ClusterConfig;
  SectionKeys add(
      table, "cluster", [](auto& config) -> auto& { return config.cluster; }, "How a run handles failures.");
  add("lease_s", &C::lease_s, whole(1, 3600), "a worker that is silent for this many seconds loses its stage");
  add("max_failures", &C::max_failures, whole(1, 1000), "attempts at one step before the run stops");
  add("max_skipped", &C::max_skipped, whole(1, 1'000'000),
      "consecutive steps without a finite loss and gradient norm before the run stops");
  add("share_model", &C::share_model, truth(),
      "machines that have joined may fetch the finished model (join --keep-model); false: each sees only its own "
      "stage");
}

const Table& table() {
  static const Table complete = [] {
    Table all;
    add_model(all);
    add_data(all);
    add_train(all);
    add_optim(all);
    add_pipeline(all);
    add_subspace(all);
    add_boundary(all);
    add_link(all);
    add_checkpoint(all);
    add_cluster(all);
    return all;
  }();
  return complete;
}

std::string decimal(double number) {
  std::string out = fmt::format("{}", number);  // the shortest text that reads back as the same number
  if (std::isfinite(number) && out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

}  // namespace

const std::vector<Section>& config_sections() { return table().sections; }
const std::vector<Key>& config_keys() { return table().keys; }

std::string toml_text(const KeyValue& value) {
  switch (static_cast<KeyType>(value.index())) {
    case KeyType::kBool:
      return std::get<bool>(value) ? "true" : "false";
    case KeyType::kWhole:
      return fmt::format("{}", std::get<int64_t>(value));
    case KeyType::kNumber:
      return decimal(std::get<double>(value));
    case KeyType::kText:
      return in_quotes(std::get<std::string>(value));
    case KeyType::kList:
      return fmt::format("[{}]", fmt::join(std::get<std::vector<int64_t>>(value), ", "));
  }
  return "";
}

}  // namespace thinpipe
