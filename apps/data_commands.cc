// thinpipe data: prepares, lists and inspects what training reads. thinpipe tokenizer train: writes a tokenizer to a
// file.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
#include "base/say.h"
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

volatile std::sig_atomic_t stop_asked = 0;
struct Interrupted {};

// The first ctrl-C stops at the next progress report and cleans up; a second one ends the program at once.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

// Uses the checks of the config, so that errors read as in `thinpipe train`.
DataConfig data_from(const PrepareArguments& arguments) {
  std::vector<std::string> settings{"data.corpus=" + arguments.corpus};
  if (!arguments.vocab.empty()) settings.push_back("data.vocab=" + arguments.vocab);
  if (!arguments.val_fraction.empty()) settings.push_back("data.val_fraction=" + arguments.val_fraction);
  if (!arguments.encoding.empty()) settings.push_back("data.encoding=" + arguments.encoding);
  if (!arguments.invalid.empty()) settings.push_back("data.invalid=" + arguments.invalid);
  if (!arguments.field.empty()) settings.push_back("data.field=" + arguments.field);
  if (!arguments.tokenizer.empty()) {
    settings.push_back("data.tokenizer=" + arguments.tokenizer);
    const auto tokenizer = Tokenizer::load(arguments.tokenizer);
    if (!tokenizer) throw UserError("--tokenizer: " + tokenizer.error().message);
    if (arguments.vocab.empty()) settings.push_back(fmt::format("data.vocab={}", tokenizer.value().vocab()));
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
  say("folder: {}\n", folder.string());
  say("corpus id: {}\n", id);
  say("documents: {} training, {} validation\n", manifest.train.documents, manifest.val.documents);
  say("tokens: {} training, {} validation; {:.3f} bytes of text per token; vocabulary {}\n", manifest.train.tokens,
      manifest.val.tokens, bytes_per_token, manifest.vocab);
  say("unigram entropy: {:.4f} nats/token\n", manifest.train_unigram_entropy);
}

// A corpus may hold bytes that are not UTF-8 once they are cut into tokens.
std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// The first tokens of a shard, as text if there is a tokenizer, else as ids. Quoted, so that text from a corpus cannot
// control the terminal.
Json show_start(const TokenShard& shard, const std::string& name, const Tokenizer* tokenizer, uint64_t tokens) {
  std::vector<int32_t> ids(std::min(tokens, shard.size()));
  shard.read(0, ids).take();
  if (tokenizer == nullptr) {
    say("first {} tokens of {}: {}\n", ids.size(), name, fmt::join(ids, " "));
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

void inspect_shard(const InspectArguments& arguments) {
  const auto shard = TokenShard::open(arguments.what).take();
  const auto tokenizer = tokenizer_beside(arguments.what, arguments.tokenizer);
  uint32_t greatest = 0;
  shard
      .for_each_block([&](uint64_t, std::span<const uint32_t> tokens) -> Status {
        greatest = std::max(greatest, *std::max_element(tokens.begin(), tokens.end()));
        return {};
      })
      .take();
  say("shard: {}\n", arguments.what);
  say("tokens: {}, {} bytes each; the largest id is {}\n", shard.size(), shard.token_bytes(), greatest);
  const auto start = show_start(shard, arguments.what, tokenizer ? &*tokenizer : nullptr, arguments.tokens);
  if (!arguments.json) return;
  fmt::print("{}\n", dumped({{"shard", arguments.what},
                             {"tokens", shard.size()},
                             {"token_bytes", shard.token_bytes()},
                             {"greatest", greatest},
                             {"start", start}}));
}

}  // namespace

void prepare_data(const PrepareArguments& arguments) {
  const auto data = data_from(arguments);
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
    say("stopped; kept nothing\n");
    throw ExitWith{130};
  }
  const auto& manifest = corpus->manifest;
  const double took = seconds(clock.now() - start);
  const double rate = static_cast<double>(manifest.train.text_bytes + manifest.val.text_bytes) / 1e6 / took;
  print_facts(corpus->folder, corpus->id, manifest);
  if (const auto line = invalid_line(data, corpus->invalid); !line.empty()) say("{}\n", line);
  say("{} {:.2f} s, {:.1f} MB/s\n", made ? "prepared in" : "was prepared already; read its source in", took, rate);
  if (!arguments.json) return;
  auto json = to_json(corpus->folder, corpus->id, manifest);
  json.update({{"made", made}, {"invalid", corpus->invalid}, {"seconds", took}, {"mb_per_s", rate}});
  fmt::print("{}\n", dumped(json));
}

void list_data(bool json) {
  auto prepared = Json::array();
  for (const auto& entry : list_prepared(data_dir())) {
    say("{}  {:>12} tokens  {:>12}  vocabulary {:<6}  {}{}\n", entry.id.substr(0, kShownId),
        entry.manifest.train.tokens + entry.manifest.val.tokens, format_size(entry.bytes), entry.manifest.vocab,
        one_line(entry.source), entry.problem.empty() ? "" : "  DAMAGED: " + one_line(entry.problem));
    auto object = to_json(entry.folder, entry.id, entry.manifest);
    object.update({{"source", entry.source}, {"bytes", entry.bytes}, {"problem", entry.problem}});
    prepared.push_back(std::move(object));
  }
  if (prepared.empty()) {
    say("no prepared corpora in {}; `thinpipe data prepare kjv` prepares one\n", data_dir().string());
  }
  if (json) fmt::print("{}\n", dumped({{"prepared", prepared}}));
}

void inspect_data(const InspectArguments& arguments) {
  std::error_code ignored;
  if (arguments.what.ends_with(".bin") && !std::filesystem::is_directory(arguments.what, ignored)) {
    return inspect_shard(arguments);
  }
  const auto entry = find_prepared(arguments.what, data_dir()).take();
  const auto corpus = open_prepared(entry.folder).take();
  const auto tokenizer =
      Tokenizer::load(arguments.tokenizer.empty() ? corpus.tokenizer : std::filesystem::path(arguments.tokenizer))
          .take();
  if (tokenizer.vocab() != corpus.vocab) {
    throw UserError(fmt::format("--tokenizer {}: has {} pieces, but the tokenizer of the corpus has {}",
                                arguments.tokenizer, tokenizer.vocab(), corpus.vocab));
  }
  print_facts(corpus.folder, corpus.id, corpus.manifest);
  say("source: {}\n", entry.source.empty() ? "unknown" : one_line(entry.source));
  say("validation fraction: {}\ncontent SHA-256: {}\ntokenizer SHA-256: {}\n", corpus.manifest.val_fraction,
      corpus.manifest.content_sha256, corpus.manifest.tokenizer_sha256);
  auto json = to_json(corpus.folder, corpus.id, corpus.manifest);
  json["source"] = entry.source;
  json["train_start"] = show_start(TokenShard::open(corpus.train).take(), "train.bin", &tokenizer, arguments.tokens);
  json["val_start"] = show_start(TokenShard::open(corpus.val).take(), "val.bin", &tokenizer, arguments.tokens);
  if (arguments.json) fmt::print("{}\n", dumped(json));
}

void train_tokenizer_file(const TokenizerArguments& arguments) {
  std::vector<std::string> settings{"data.corpus=" + arguments.corpus};
  if (!arguments.vocab.empty()) settings.push_back("data.vocab=" + arguments.vocab);
  const auto data = parse_config("", "the command line", settings).data;
  // First, so that a file that cannot be written is refused at once.
  auto file = AtomicFile::create(arguments.out).take();
  const SystemClock clock;
  std::string model;
  {
    PrepareLine line(stdout, ::isatty(STDOUT_FILENO) == 1, clock);
    model = train_corpus_tokenizer(data, std::ref(line));
  }
  file.append(model).take();
  file.commit().take();
  say("{}: {} pieces, trained on the training documents of {}\n", arguments.out, data.vocab, data.corpus);
}

}  // namespace thinpipe
