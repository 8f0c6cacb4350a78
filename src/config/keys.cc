#include "config/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "config/enum_names.h"

namespace thinpipe {
namespace {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
// A guard against division by 0 must not itself be 0 in float32 or bf16.
constexpr double kLeastEps = 1e-30;

// What a value must be: in words that complete "needs ...", and as a test.
struct Rule {
  std::string needs;
  std::function<bool(const KeyValue&)> accepts;
};

Rule whole(int64_t low, int64_t high) {
  return {fmt::format("a whole number from {} to {}", low, high), [low, high](const KeyValue& value) {
            const auto number = std::get<int64_t>(value);
            return low <= number && number <= high;
          }};
}

Rule above(double low, double high) {
  return {fmt::format("a number above {} and at most {}", low, high), [low, high](const KeyValue& value) {
            const auto number = std::get<double>(value);
            return low < number && number <= high;
          }};
}

Rule from(double low, double high) {
  return {fmt::format("a number from {} to {}", low, high), [low, high](const KeyValue& value) {
            const auto number = std::get<double>(value);
            return low <= number && number <= high;
          }};
}

Rule from_to_below(double low, double high) {
  return {fmt::format("a number from {} to below {}", low, high), [low, high](const KeyValue& value) {
            const auto number = std::get<double>(value);
            return low <= number && number < high;
          }};
}

Rule truth() {
  return {"true or false", [](const KeyValue&) { return true; }};
}

Rule text() {
  return {"text", [](const KeyValue&) { return true; }};
}

Rule some_text() {
  return {"text that is not empty", [](const KeyValue& value) { return !std::get<std::string>(value).empty(); }};
}

Rule hash_or_nothing() {
  return {"64 lower-case hex digits, or empty text", [](const KeyValue& value) {
            const auto& digits = std::get<std::string>(value);
            return digits.empty() ||
                   (digits.size() == 64 && digits.find_first_not_of("0123456789abcdef") == std::string::npos);
          }};
}

Rule device() {
  return {"\"cpu\", \"cuda\" or \"cuda:N\" with N from 0 to 999", [](const KeyValue& value) {
            std::string_view name = std::get<std::string>(value);
            if (name == "cpu" || name == "cuda") return true;
            if (!name.starts_with("cuda:")) return false;
            name.remove_prefix(5);
            return !name.empty() && name.size() <= 3 && name.find_first_not_of("0123456789") == std::string_view::npos;
          }};
}

Rule list_of_whole(int64_t low, int64_t high, size_t most) {
  return {fmt::format("a list of at most {} whole numbers from {} to {}", most, low, high),
          [low, high, most](const KeyValue& value) {
            const auto& numbers = std::get<std::vector<int64_t>>(value);
            for (const int64_t number : numbers) {
              if (number < low || high < number) return false;
            }
            return numbers.size() <= most;
          }};
}

// That, or one word of text in its place.
Rule or_word(const std::string& word, const Rule& rule) {
  return {fmt::format("{}, or \"{}\"", rule.needs, word), [word, rule](const KeyValue& value) {
            const auto* text = std::get_if<std::string>(&value);
            return text != nullptr ? *text == word : rule.accepts(value);
          }};
}

template <class E>
Rule one_of() {
  std::string needs;
  const auto& all = EnumNames<E>::kAll;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) needs += i + 1 == all.size() ? " or " : ", ";
    needs += fmt::format("\"{}\"", all[i].second);
  }
  return {needs, [](const KeyValue& value) {
            E ignored{};
            return enum_from_name(std::get<std::string>(value), &ignored);
          }};
}

// One whose other values are read only to be refused with the reason (run_config.cc): they are not offered.
Rule offering(const std::string& needs, const Rule& rule) { return {needs, rule.accepts}; }

template <class T>
KeyValue to_value(const T& field) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(enum_name(field));
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return static_cast<int64_t>(field);  // TOML has no other integers; what does not fit turns negative and is refused
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

// Adds keys of one section: `add("d", &ModelConfig::d, whole(1, 65536), "width")`. The section is found by a function
// of the config, `[](auto& config) -> auto& { return config.model; }`, so that it may lie inside another.
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
        .word = "",
    });
  }

  // The key added last may also be `word`, which is kept as a flag of its own; `field` has its empty value then.
  template <class T>
  void or_else(const std::string& word, bool Fields::*flag, T Fields::*field) {
    const auto find = find_;
    Key& key = table_.keys.back();
    const Rule rule = or_word(word, {key.needs, key.accepts});
    key.needs = rule.needs;
    key.accepts = rule.accepts;
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
  add("mode", &C::mode, one_of<ModelMode>(), "a dense LLaMA, or one whose residual stream lives in a shared subspace");
  add("d", &C::d, whole(1, 65536), "width of the residual stream");
  add("blocks", &C::blocks, whole(1, 4096), "transformer blocks, L");
  add("heads", &C::heads, whole(1, 1024), "query heads; divides d");
  add("kv_heads", &C::kv_heads, whole(1, 1024), "key/value heads; divides heads", "the same as heads",
      [](RunConfig& config) { config.model.kv_heads = config.model.heads; });
  add("mlp_width", &C::mlp_width, whole(1, 1 << 20), "inner width of SwiGLU", "8/3 d, rounded up to a multiple of 32",
      [](RunConfig& config) { config.model.mlp_width = default_mlp_width(config.model.d); });
  add("positions", &C::positions, offering("\"rope\" or \"sinusoidal\"", one_of<Positions>()),
      "how the model knows where a token stands");
  add("rope_base", &C::rope_base, above(0, 1e12), "base of the rotary frequencies");
  add("position_scale", &C::position_scale, from(0, 100),
      "what sinusoidal positions are multiplied with; their root mean square is 0.71 times this");
  add("qk_norm", &C::qk_norm, truth(), "normalise queries and keys before they meet");
  add("norm_eps", &C::norm_eps, from(kLeastEps, 1), "added to the mean square in every norm");
  add("init_std", &C::init_std, above(0, 10), "standard deviation of the initial weights");
  add("tied_head", &C::tied_head, truth(), "head = embedding; no model here has it, and a subspace model cannot");
  add("output_bias", &C::output_bias, truth(), "biases on the output projections; likewise");
  add("post_norm", &C::post_norm,
      offering("\"none\": a norm with gains, or LayerNorm, after a sublayer would leave the subspace",
               one_of<PostNorm>()),
      "a norm with gains after each sublayer; likewise");
}

void add_data(Table& table) {
  using C = DataConfig;
  SectionKeys add(
      table, "data", [](auto& config) -> auto& { return config.data; }, "The text and how it becomes tokens.");
  add("corpus", &C::corpus, some_text(), "`kjv`, or the path of a UTF-8 file, a .jsonl file, or a folder of both");
  add("tokenizer", &C::tokenizer, text(), "path of a sentencepiece .model; empty: train one on the corpus");
  add("vocab", &C::vocab, whole(260, 1 << 24), "vocabulary of the tokenizer to train; must equal a loaded one's");
  add("val_fraction", &C::val_fraction, above(0, 0.5), "share of the documents that training never sees");
}

// tokens of a run = steps x microbatches x microbatch x seq_len: the bounds keep it below 2^62.
void add_train(Table& table) {
  using C = TrainConfig;
  SectionKeys add(
      table, "train", [](auto& config) -> auto& { return config.train; },
      "The run: how long, in what portions, on what.");
  add("steps", &C::steps, whole(0, 10'000'000), "optimizer steps");
  add("seq_len", &C::seq_len, whole(1, 65536), "tokens in a sequence, T");
  add("microbatch", &C::microbatch, whole(1, 4096), "sequences in a microbatch, B");
  add("microbatches", &C::microbatches, whole(1, 1024), "microbatches in a step, M");
  add("seed", &C::seed, whole(0, kInt64Max), "of the initial weights and the order of the data");
  add("precision", &C::precision, one_of<Precision>(),
      "what is computed in; bf16 keeps float32 weights and moments and rounds the operands of the products with "
      "weights (docs/model.md)");
  add("device", &C::device, device(), "where it is computed");
  add("threads", &C::threads, whole(0, 4096),
      "compute threads per stage; 0: all cores for one stage, one each for several");
  add("eval_every", &C::eval_every, whole(0, 10'000'000), "steps between validation passes; 0: only at the end");
  add("eval_sequences", &C::eval_sequences, whole(1, 1 << 20),
      "validation sequences in such a pass; the final one uses the whole split");
}

void add_optim(Table& table) {
  using C = OptimConfig;
  SectionKeys add(
      table, "optim", [](auto& config) -> auto& { return config.optim; },
      "The optimizer. muon takes the blocks' matrices and adamw everything else; adamw takes all; row_adamw takes the "
      "subspace's coordinates and adamw the rest.");
  add("kind", &C::kind, one_of<OptimizerKind>(), "the optimizer of the blocks' matrices");
  add("lr", &C::lr, above(0, 100),
      "peak learning rate of the matrices; with kind = \"adamw\" or \"row_adamw\", of everything");
  add("adamw_lr", &C::adamw_lr, above(0, 100),
      "peak learning rate of what muon does not take; unused with \"adamw\" and \"row_adamw\"");
  add("embedding_lr_scale", &C::embedding_lr_scale, above(0, 1e6), "times adamw_lr for the embedding, muon runs only");
  add("beta1", &C::beta1, from_to_below(0, 1), "adamw's decay of the first moment");
  add("beta2", &C::beta2, from_to_below(0, 1), "adamw's decay of the second moment");
  add("eps", &C::eps, from(kLeastEps, 1), "adamw's guard against division by 0");
  add("momentum", &C::momentum, from_to_below(0, 1), "muon's momentum");
  add("weight_decay", &C::weight_decay, from(0, 100), "decoupled; matrices and embeddings only, never gains");
  add("clip", &C::clip, from(0, 1e9), "largest global gradient norm; 0: no clipping");
  add("schedule", &C::schedule, one_of<LrSchedule>(), "the learning rate after the warm-up");
  add("warmup", &C::warmup, whole(0, 10'000'000), "steps of linear warm-up");
  add("decay_fraction", &C::decay_fraction, from(0, 1), "wsd: the last share of the steps, which falls linearly");
  add("min_lr_ratio", &C::min_lr_ratio, from(0, 1), "where cosine, linear and wsd end, as a share of the peak");
}

void add_pipeline(Table& table) {
  using C = PipelineConfig;
  SectionKeys add(
      table, "pipeline", [](auto& config) -> auto& { return config.pipeline; }, "How the blocks are cut into stages.");
  add("stages", &C::stages, whole(1, 4096), "stages; at most one per block",
      "the number of cuts, or 4, or as many as there are blocks if they are fewer", [](RunConfig& config) {
        const auto cuts = static_cast<int64_t>(config.pipeline.cuts.size());
        config.pipeline.stages = cuts > 0 ? cuts : std::min<int64_t>(4, config.model.blocks);
      });
  add("cuts", &C::cuts, list_of_whole(1, 4096, 4096),
      "blocks per stage, summing to model.blocks; empty: as even as can be, the rest early; auto: by the speed and "
      "memory of the machines that take part, as even as can be while they are not known");
  add.or_else("auto", &C::auto_cuts, &C::cuts);
  add("schedule", &C::schedule, one_of<ScheduleKind>(), "the order of forward and backward passes in a step");
}

// After the pipeline: anchor groups that are not given follow the cuts.
void add_subspace(Table& table) {
  using C = SubspaceConfig;
  SectionKeys add(
      table, "subspace", [](auto& config) -> auto& { return config.model.subspace; },
      "The shared subspace, when model.mode = \"subspace\".");
  add("rank", &C::rank, whole(1, 65536), "dimensions of the subspace, k; at most d");
  add("full_rank_tail", &C::full_rank_tail, whole(0, 4096),
      "the last n blocks have dense output projections; all of them must stand in the last stage");
  add("anchors", &C::anchors, one_of<Anchors>(),
      "the frozen token table all stages share, or a trainable one per group");
  add("anchor_groups", &C::anchor_groups, list_of_whole(1, 4096, 4096),
      "blocks per trainable table; a later cut may join groups, never split one", "with anchors = \"stage\", the cuts",
      [](RunConfig& config) {
        if (config.model.is_subspace() && config.model.subspace.anchors == Anchors::kStage &&
            config.pipeline.stages <= config.model.blocks) {
          config.model.subspace.anchor_groups = blocks_per_stage(config);
        }
      });
  add("norm", &C::norm, one_of<NormForm>(), "RMSNorm of coordinates and anchor together, or of each by itself");
  add("anchor_std", &C::anchor_std, above(0, 1000), "standard deviation of the token table");
  add("table", &C::table, hash_or_nothing(),
      "SHA-256 of the token table's rows, for a run that brings its own as tables/HASH.safetensors in its folder "
      "(docs/checkpoints.md); empty: made from the seed");
  add("input", &C::input, one_of<InputForm>(), "how blocks read the stream; auto takes the cheaper for the microbatch");
  add("zero_init", &C::zero_init, truth(), "output coordinates start at 0");
  add("update_every", &C::update_every, whole(0, 10'000'000), "steps between moves of the subspace; 0: never");
  add("update_rate", &C::update_rate, above(0, 1e6), "length of such a move, alpha");
}

void add_boundary(Table& table) {
  using C = BoundaryConfig;
  SectionKeys add(
      table, "boundary", [](auto& config) -> auto& { return config.boundary; }, "What crosses a cut.");
  add("kind", &C::kind, one_of<BoundaryKind>(), "coordinates, or x itself", "that of model.mode",
      [](RunConfig& config) {
        config.boundary.kind = config.model.is_subspace() ? BoundaryKind::kSubspace : BoundaryKind::kDense;
      });
  add("pack", &C::pack, one_of<Pack>(), "how its numbers are written (docs/wire.md); the ints have a scale per token",
      "`int4` for coordinates, `fp32` for x",
      [](RunConfig& config) { config.boundary.pack = config.model.is_subspace() ? Pack::kInt4 : Pack::kFp32; });
}

void add_link(Table& table) {
  using C = LinkConfig;
  SectionKeys add(
      table, "link", [](auto& config) -> auto& { return config.link; },
      "How slow the links between stages are made, for runs on one machine. Each value holds for all cuts, or is a "
      "list "
      "of one per cut (`\"80mbit, 20mbit\"`); each may be given as forward/backward (`\"80mbit/10mbit\"`).");
  add("rate", &C::rate, some_text(), "`80mbit`, or `unlimited`; counts the bytes of whole packets");
  add("delay", &C::delay, some_text(), "time a packet is under way after its last byte has left, `25ms`");
  add("jitter", &C::jitter, some_text(), "at most so much more, drawn for each packet; packets do not overtake");
}

void add_checkpoint(Table& table) {
  using C = CheckpointConfig;
  SectionKeys add(
      table, "checkpoint", [](auto& config) -> auto& { return config.checkpoint; },
      "What a run can be taken up from (docs/checkpoints.md).");
  add("every", &C::every, whole(0, 10'000'000), "steps between checkpoints; 0: only when the run ends or is stopped");
  add("keep_last", &C::keep_last, whole(1, 1'000'000), "the newest so many are kept");
  add("keep_every", &C::keep_every, whole(0, 10'000'000), "and those of steps divisible by this; 0: none");
  add("mode", &C::mode, one_of<CheckpointMode>(),
      "written beside the next steps from a copy in memory, or before them; auto: as the memory allows");
}

void add_cluster(Table& table) {
  using C = ClusterConfig;
  SectionKeys add(
      table, "cluster", [](auto& config) -> auto& { return config.cluster; }, "How a run bears failures.");
  add("lease_s", &C::lease_s, whole(1, 3600), "a worker not heard of for so many seconds has lost its stage");
  add("max_failures", &C::max_failures, whole(1, 1000), "attempts at one step before the run stops");
  add("max_skipped", &C::max_skipped, whole(1, 1'000'000),
      "steps in a row without a finite loss and norm before the run stops");
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

std::string quoted_text(std::string_view value) {
  std::string out = "\"";
  for (const char character : value) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      if (character == '"' || character == '\\') out += '\\';
      out += character;
    }
  }
  return out + '"';
}

std::string decimal(double number) {
  std::string out = fmt::format("{}", number);  // shortest that reads back the same
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
      return quoted_text(std::get<std::string>(value));
    case KeyType::kList:
      return fmt::format("[{}]", fmt::join(std::get<std::vector<int64_t>>(value), ", "));
  }
  return "";
}

}  // namespace thinpipe
