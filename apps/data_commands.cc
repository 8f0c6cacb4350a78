// thinpipe data: prepare, list, inspect and verify what training reads.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
#include "base/units.h"
#include "commands.h"
#include "config/config_file.h"
#include "text/prepare.h"
#include "text/prepare_line.h"
#include "text/prepared_store.h"
#include "text/tokenizer.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kShownId = 12;

struct PrepareOptions {
  std::string corpus;
  std::string vocab;
  std::string tokenizer;
  std::string val_fraction;
  bool json = false;
};

struct InspectOptions {
  std::string what;
  std::string tokenizer;
  uint64_t tokens = 64;
  bool json = false;
};

volatile std::sig_atomic_t stop_asked = 0;
struct Interrupted {};

// The first ctrl-C stops at the next document, which leaves a tidy screen; a second one kills. Either way the next
// preparation goes on.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

// Through the config's own checks, so that a fault reads as it would in `thinpipe train`.
DataConfig data_from(const PrepareOptions& options) {
  std::vector<std::string> settings{"data.corpus=" + options.corpus};
  if (!options.vocab.empty()) settings.push_back("data.vocab=" + options.vocab);
  if (!options.val_fraction.empty()) settings.push_back("data.val_fraction=" + options.val_fraction);
  if (!options.tokenizer.empty()) {
    settings.push_back("data.tokenizer=" + options.tokenizer);
    const auto tokenizer = Tokenizer::load(options.tokenizer);
    if (!tokenizer) throw UserError("--tokenizer: " + tokenizer.error().message);
    if (options.vocab.empty()) settings.push_back(fmt::format("data.vocab={}", tokenizer.value().vocab()));
  }
  return parse_config("", "the command line", settings).data;
}

Json to_json(const SplitManifest& split) {
  return {{"documents", split.documents},
          {"text_bytes", split.text_bytes},
          {"tokens", split.tokens},
          {"sha256", split.sha256}};
}

Json to_json(const std::filesystem::path& folder, const std::string& id, const Manifest& manifest) {
  return {{"folder", folder.string()},
          {"id", id},
          {"content_sha256", manifest.content_sha256},
          {"tokenizer_sha256", manifest.tokenizer_sha256},
          {"vocab", manifest.vocab},
          {"val_fraction", manifest.val_fraction},
          {"train", to_json(manifest.train)},
          {"val", to_json(manifest.val)},
          {"train_unigram_entropy_nats", manifest.train_unigram_entropy}};
}

double bytes_per_token(const Manifest& manifest) {
  return static_cast<double>(manifest.train.text_bytes + manifest.val.text_bytes) /
         static_cast<double>(std::max<uint64_t>(1, manifest.train.tokens + manifest.val.tokens));
}

void print_facts(const std::filesystem::path& folder, const std::string& id, const Manifest& manifest) {
  fmt::print("folder: {}\n", folder.string());
  fmt::print("corpus id: {}\n", id);
  fmt::print("documents: {} training, {} validation\n", manifest.train.documents, manifest.val.documents);
  fmt::print("tokens: {} training, {} validation; {:.3f} bytes of text per token; vocabulary {}\n",
             manifest.train.tokens, manifest.val.tokens, bytes_per_token(manifest), manifest.vocab);
  fmt::print("unigram entropy: {:.4f} nats/token\n", manifest.train_unigram_entropy);
}

void prepare(const PrepareOptions& options) {
  const auto data = data_from(options);
  const SystemClock clock;
  const auto start = clock.now();
  bool made = false;
  std::optional<PreparedCorpus> corpus;
  catch_interrupts();
  try {
    PrepareLine line(stdout, ::isatty(STDOUT_FILENO) == 1, clock);
    corpus = prepare_corpus(data, data_dir(), [&](std::string_view phase, uint64_t done, uint64_t total) {
      if (stop_asked != 0) throw Interrupted();
      made = made || phase == "tokenizing";
      line(phase, done, total);
    });
  } catch (const Interrupted&) {
    fmt::print("stopped; the same command goes on from here\n");
    throw ExitWith{130};
  }
  const auto& manifest = corpus->manifest;
  const double took = seconds(clock.now() - start);
  const double rate = static_cast<double>(manifest.train.text_bytes + manifest.val.text_bytes) / 1e6 / took;
  print_facts(corpus->folder, corpus->id, manifest);
  fmt::print("{} {:.2f} s, {:.1f} MB/s\n", made ? "prepared in" : "was there already; its source was read in", took,
             rate);
  if (!options.json) return;
  auto json = to_json(corpus->folder, corpus->id, manifest);
  json.update({{"made", made}, {"seconds", took}, {"mb_per_s", rate}});
  fmt::print("{}\n", json.dump());
}

void list(bool json) {
  const auto listing = list_prepared(data_dir());
  if (listing.prepared.empty() && listing.unfinished.empty()) {
    fmt::print("no prepared corpora in {}; `thinpipe data prepare kjv` makes one\n", data_dir().string());
  }
  auto prepared = Json::array(), unfinished = Json::array();
  for (const auto& entry : listing.prepared) {
    fmt::print("{}  {:>12} tokens  {:>12}  vocabulary {:<6}  {}{}\n", entry.id.substr(0, kShownId),
               entry.manifest.train.tokens + entry.manifest.val.tokens, format_size(entry.bytes), entry.manifest.vocab,
               one_line(entry.source), entry.problem.empty() ? "" : "  DAMAGED: " + one_line(entry.problem));
    auto object = to_json(entry.folder, entry.id, entry.manifest);
    object.update({{"source", entry.source}, {"bytes", entry.bytes}, {"problem", entry.problem}});
    prepared.push_back(std::move(object));
  }
  for (const auto& entry : listing.unfinished) {
    fmt::print("unfinished    {} of text tokenised  {}  {}\n", format_size(entry.text_bytes), format_size(entry.bytes),
               one_line(entry.source));
    unfinished.push_back({{"folder", entry.folder.string()},
                          {"source", entry.source},
                          {"text_bytes", entry.text_bytes},
                          {"bytes", entry.bytes}});
  }
  if (json) fmt::print("{}\n", Json({{"prepared", prepared}, {"unfinished", unfinished}}).dump());
}

bool is_shard(const std::string& what) {
  std::error_code ignored;
  return what.ends_with(".bin") && !std::filesystem::is_directory(what, ignored);
}

// The first tokens of a shard: as text if there is a tokenizer, else as ids. Quoted, so that whatever a corpus holds
// does nothing to a terminal.
Json show_start(const TokenShard& shard, const std::string& name, const Tokenizer* tokenizer, uint64_t tokens) {
  std::vector<int32_t> ids(std::min(tokens, shard.size()));
  shard.read(0, ids).take();
  if (tokenizer == nullptr) {
    fmt::print("first {} tokens of {}: {}\n", ids.size(), name, fmt::join(ids, " "));
    return {{"ids", ids}};
  }
  const auto decoded = tokenizer->decode(ids);
  if (!decoded) throw UserError(fmt::format("{}: {}", name, decoded.error().message));
  const Json text = decoded.value();
  fmt::print("first {} tokens of {}: {}\n", ids.size(), name,
             text.dump(-1, ' ', false, Json::error_handler_t::replace));
  return {{"ids", ids}, {"text", text}};
}

std::optional<Tokenizer> tokenizer_beside(const std::filesystem::path& shard, const std::string& given) {
  if (!given.empty()) return Tokenizer::load(given).take();
  const auto path = shard.parent_path() / "tokenizer.model";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return Tokenizer::load(path).take();
}

void inspect_shard(const InspectOptions& options) {
  const auto shard = TokenShard::open(options.what).take();
  const auto facts = shard_facts(shard).take();
  const auto tokenizer = tokenizer_beside(options.what, options.tokenizer);
  fmt::print("shard: {}\n", options.what);
  fmt::print("tokens: {}, {} bytes each\n", facts.tokens, facts.token_bytes);
  fmt::print("ids: {} distinct{}, the greatest {}\n", facts.distinct,
             facts.greatest >= kCountedIds ? fmt::format(" below {}", kCountedIds) : "", facts.greatest);
  const auto start = show_start(shard, options.what, tokenizer ? &*tokenizer : nullptr, options.tokens);
  if (!options.json) return;
  const Json object = {{"shard", options.what},      {"tokens", facts.tokens},     {"token_bytes", facts.token_bytes},
                       {"distinct", facts.distinct}, {"greatest", facts.greatest}, {"start", start}};
  fmt::print("{}\n", object.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void inspect(const InspectOptions& options) {
  if (is_shard(options.what)) return inspect_shard(options);
  const auto entry = find_prepared(options.what, data_dir()).take();
  const auto corpus = open_prepared(entry.folder).take();
  const auto tokenizer =
      Tokenizer::load(options.tokenizer.empty() ? corpus.tokenizer : std::filesystem::path(options.tokenizer)).take();
  if (tokenizer.vocab() != corpus.vocab) {
    throw UserError(fmt::format("--tokenizer {}: has {} pieces, the corpus was tokenised with {}", options.tokenizer,
                                tokenizer.vocab(), corpus.vocab));
  }
  print_facts(corpus.folder, corpus.id, corpus.manifest);
  fmt::print("source: {}\n", entry.source.empty() ? "not known" : one_line(entry.source));
  fmt::print("validation fraction: {}\ncontent SHA-256: {}\ntokenizer SHA-256: {}\n", corpus.manifest.val_fraction,
             corpus.manifest.content_sha256, corpus.manifest.tokenizer_sha256);
  auto json = to_json(corpus.folder, corpus.id, corpus.manifest);
  json["source"] = entry.source;
  json["train_start"] = show_start(TokenShard::open(corpus.train).take(), "train.bin", &tokenizer, options.tokens);
  json["val_start"] = show_start(TokenShard::open(corpus.val).take(), "val.bin", &tokenizer, options.tokens);
  if (options.json) fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void verify(const std::string& what) {
  if (is_shard(what)) {
    const auto facts = shard_facts(TokenShard::open(what).take()).take();
    fmt::print("{}: a token shard of {} tokens, the greatest id {}; a shard alone names no hash to check\n", what,
               facts.tokens, facts.greatest);
    return;
  }
  const auto entry = find_prepared(what, data_dir()).take();
  const auto corpus = verify_prepared(entry.folder).take();
  fmt::print("{}: fine: corpus {}, {} tokens\n", corpus.folder.string(), corpus.id.substr(0, kShownId),
             corpus.manifest.train.tokens + corpus.manifest.val.tokens);
}

constexpr const char* kWhat = "a prepared folder, a corpus id or its beginning, a source that was prepared, or a .bin";

void add_prepare(CLI::App& data) {
  auto options = std::make_shared<PrepareOptions>();
  auto* command = data.add_subcommand("prepare", "tokenise a corpus, as `thinpipe train` does before it trains");
  command->add_option("corpus", options->corpus, "kjv, a text or .jsonl file, or a folder of them")->required();
  command->add_option("--vocab", options->vocab, "pieces of the tokenizer, as data.vocab");
  command->add_option("--tokenizer", options->tokenizer, "a sentencepiece .model to use; none: one is trained");
  command->add_option("--val-fraction", options->val_fraction, "of the documents, kept from training");
  command->add_flag("--json", options->json, "one JSON object on the last line");
  command->footer(
      "Examples:\n  thinpipe data prepare kjv\n  thinpipe data prepare books/ --vocab 16384\n"
      "  thinpipe data prepare more.jsonl --tokenizer mine.model\n"
      "Interrupted, by ctrl-C or a full disk or a power cut, the same command goes on where it was.");
  command->callback([options] { prepare(*options); });
}

}  // namespace

void add_data_commands(CLI::App& app) {
  auto* data = app.add_subcommand("data", "prepare, list, inspect and verify corpora and token shards");
  data->require_subcommand(1);
  data->footer(
      "Examples:\n  thinpipe data prepare kjv\n  thinpipe data list\n  thinpipe data inspect kjv\n"
      "A corpus is prepared once, into the data folder; train does it by itself where it has not been done.");
  add_prepare(*data);

  auto json = std::make_shared<bool>(false);
  auto* listing = data->add_subcommand("list", "the prepared corpora of this machine");
  listing->add_flag("--json", *json, "one JSON object on the last line");
  listing->footer(
      "Examples:\n  thinpipe data list\n  THINPIPE_DATA_DIR=/mnt/data thinpipe data list --json\n"
      "A line for each: its id, tokens, size, vocabulary, and the corpus it was made from.");
  listing->callback([json] { list(*json); });

  auto options = std::make_shared<InspectOptions>();
  auto* inspection = data->add_subcommand("inspect", "what a corpus or a shard holds, and how it begins");
  inspection->add_option("what", options->what, kWhat)->required();
  inspection->add_option("--tokens", options->tokens, "shown of each shard")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  inspection->add_option("--tokenizer", options->tokenizer, "to read the tokens with; none: the one beside them");
  inspection->add_flag("--json", options->json, "one JSON object on the last line");
  inspection->footer(
      "Examples:\n  thinpipe data inspect kjv\n  thinpipe data inspect 3f2a91 --tokens 200\n"
      "  thinpipe data inspect fineweb_train_000001.bin --tokenizer gpt2.model\n"
      "It prints what is known of the corpus, and how each shard begins, as text.");
  inspection->callback([options] { inspect(*options); });

  auto what = std::make_shared<std::string>();
  auto* verification = data->add_subcommand("verify", "read all of a corpus and check it against its manifest");
  verification->add_option("what", *what, kWhat)->required();
  verification->footer(
      "Examples:\n  thinpipe data verify kjv\n  thinpipe data verify 3f2a91\n"
      "Exit code 0 and one line if every hash, size and id is right; else 2 and one line that names the file.");
  verification->callback([what] { verify(*what); });
}

}  // namespace thinpipe
