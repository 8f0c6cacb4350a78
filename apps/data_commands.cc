// thinpipe data: prepare, list and inspect what training reads.
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
#include "text/shards.h"
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

// The first ctrl-C stops at the next report of progress and cleans up; a second one kills.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

// Through the config's own checks, so that errors read as they do in `thinpipe train`.
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

// The manifest with the folder and the id.
Json to_json(const std::filesystem::path& folder, const std::string& id, const Manifest& manifest) {
  Json json = {{"folder", folder.string()}, {"id", id}};
  json.update(Json::parse(manifest_text(manifest)));
  return json;
}

void print_facts(const std::filesystem::path& folder, const std::string& id, const Manifest& manifest) {
  const double bytes_per_token =
      static_cast<double>(manifest.train.text_bytes + manifest.val.text_bytes) /
      static_cast<double>(std::max<uint64_t>(1, manifest.train.tokens + manifest.val.tokens));
  fmt::print("folder: {}\n", folder.string());
  fmt::print("corpus id: {}\n", id);
  fmt::print("documents: {} training, {} validation\n", manifest.train.documents, manifest.val.documents);
  fmt::print("tokens: {} training, {} validation; {:.3f} bytes of text per token; vocabulary {}\n",
             manifest.train.tokens, manifest.val.tokens, bytes_per_token, manifest.vocab);
  fmt::print("unigram entropy: {:.4f} nats/token\n", manifest.train_unigram_entropy);
}

// A corpus may hold bytes that are not UTF-8 once they are cut into tokens.
std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

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
    fmt::print("stopped; nothing was kept\n");
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
  fmt::print("{}\n", dumped(json));
}

void list(bool json) {
  auto prepared = Json::array();
  for (const auto& entry : list_prepared(data_dir())) {
    fmt::print("{}  {:>12} tokens  {:>12}  vocabulary {:<6}  {}{}\n", entry.id.substr(0, kShownId),
               entry.manifest.train.tokens + entry.manifest.val.tokens, format_size(entry.bytes), entry.manifest.vocab,
               one_line(entry.source), entry.problem.empty() ? "" : "  DAMAGED: " + one_line(entry.problem));
    auto object = to_json(entry.folder, entry.id, entry.manifest);
    object.update({{"source", entry.source}, {"bytes", entry.bytes}, {"problem", entry.problem}});
    prepared.push_back(std::move(object));
  }
  if (prepared.empty()) {
    fmt::print("no prepared corpora in {}; `thinpipe data prepare kjv` makes one\n", data_dir().string());
  }
  if (json) fmt::print("{}\n", dumped({{"prepared", prepared}}));
}

// The first tokens of a shard: as text if there is a tokenizer, else as ids. Quoted, so that no text of a corpus can
// control the terminal.
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
  fmt::print("first {} tokens of {}: {}\n", ids.size(), name, dumped(text));
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
  const auto tokenizer = tokenizer_beside(options.what, options.tokenizer);
  uint32_t greatest = 0;
  shard
      .for_each_block([&](uint64_t, std::span<const uint32_t> tokens) -> Status {
        greatest = std::max(greatest, *std::max_element(tokens.begin(), tokens.end()));
        return {};
      })
      .take();
  fmt::print("shard: {}\n", options.what);
  fmt::print("tokens: {}, {} bytes each; the greatest id is {}\n", shard.size(), shard.token_bytes(), greatest);
  const auto start = show_start(shard, options.what, tokenizer ? &*tokenizer : nullptr, options.tokens);
  if (!options.json) return;
  fmt::print("{}\n", dumped({{"shard", options.what},
                             {"tokens", shard.size()},
                             {"token_bytes", shard.token_bytes()},
                             {"greatest", greatest},
                             {"start", start}}));
}

void inspect(const InspectOptions& options) {
  std::error_code ignored;
  if (options.what.ends_with(".bin") && !std::filesystem::is_directory(options.what, ignored)) {
    return inspect_shard(options);
  }
  const auto entry = find_prepared(options.what, data_dir()).take();
  const auto corpus = open_prepared(entry.folder).take();
  const auto tokenizer =
      Tokenizer::load(options.tokenizer.empty() ? corpus.tokenizer : std::filesystem::path(options.tokenizer)).take();
  if (tokenizer.vocab() != corpus.vocab) {
    throw UserError(fmt::format("--tokenizer {}: has {} pieces, the corpus was tokenised with {}", options.tokenizer,
                                tokenizer.vocab(), corpus.vocab));
  }
  print_facts(corpus.folder, corpus.id, corpus.manifest);
  fmt::print("source: {}\n", entry.source.empty() ? "unknown" : one_line(entry.source));
  fmt::print("validation fraction: {}\ncontent SHA-256: {}\ntokenizer SHA-256: {}\n", corpus.manifest.val_fraction,
             corpus.manifest.content_sha256, corpus.manifest.tokenizer_sha256);
  auto json = to_json(corpus.folder, corpus.id, corpus.manifest);
  json["source"] = entry.source;
  json["train_start"] = show_start(TokenShard::open(corpus.train).take(), "train.bin", &tokenizer, options.tokens);
  json["val_start"] = show_start(TokenShard::open(corpus.val).take(), "val.bin", &tokenizer, options.tokens);
  if (options.json) fmt::print("{}\n", dumped(json));
}

void add_prepare(CLI::App& data) {
  auto options = std::make_shared<PrepareOptions>();
  auto* command = data.add_subcommand("prepare", "tokenise a corpus, as `thinpipe train` does before it trains");
  command->add_option("corpus", options->corpus, "kjv, a text or .jsonl file, or a folder of them")->required();
  command->add_option("--vocab", options->vocab, "number of pieces of the tokenizer; default: data.vocab's");
  command->add_option("--tokenizer", options->tokenizer, "sentencepiece .model to use; default: train one");
  command->add_option("--val-fraction", options->val_fraction, "fraction of the documents kept for validation");
  command->add_flag("--json", options->json, "one JSON object on the last line");
  command->footer(
      "Examples:\n  thinpipe data prepare kjv\n  thinpipe data prepare books/ --vocab 16384\n"
      "  thinpipe data prepare more.jsonl --tokenizer mine.model\n"
      "An interrupted preparation keeps nothing; run the same command again.");
  command->callback([options] { prepare(*options); });
}

void add_inspect(CLI::App& data) {
  auto options = std::make_shared<InspectOptions>();
  auto* command = data.add_subcommand("inspect", "show what a corpus or a shard holds, and how it begins");
  command
      ->add_option("what", options->what,
                   "a prepared folder, a corpus id or its beginning, a source that was prepared, or a .bin")
      ->required();
  command->add_option("--tokens", options->tokens, "number of tokens to show of each shard")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, ".model to decode with; default: the one beside the shard");
  command->add_flag("--json", options->json, "one JSON object on the last line");
  command->footer(
      "Examples:\n  thinpipe data inspect kjv\n  thinpipe data inspect 3f2a91 --tokens 200\n"
      "  thinpipe data inspect fineweb_train_000001.bin --tokenizer gpt2.model\n"
      "It prints what is known about the corpus, and the first tokens of each shard as text.");
  command->callback([options] { inspect(*options); });
}

}  // namespace

void add_data_commands(CLI::App& app) {
  auto* data = app.add_subcommand("data", "prepare, list and inspect corpora and token shards");
  data->require_subcommand(1);
  data->footer(
      "Examples:\n  thinpipe data prepare kjv\n  thinpipe data list\n  thinpipe data inspect kjv\n"
      "A corpus is prepared once, into the data folder. `thinpipe train` does it if it has not been done.");
  add_prepare(*data);
  auto json = std::make_shared<bool>(false);
  auto* listing = data->add_subcommand("list", "the prepared corpora of this machine");
  listing->add_flag("--json", *json, "one JSON object on the last line");
  listing->footer(
      "Examples:\n  thinpipe data list\n  THINPIPE_DATA_DIR=/mnt/data thinpipe data list --json\n"
      "One line for each: its id, tokens, size, vocabulary, and the corpus it was made from.");
  listing->callback([json] { list(*json); });
  add_inspect(*data);
}

}  // namespace thinpipe
