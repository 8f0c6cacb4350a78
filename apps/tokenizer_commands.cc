// thinpipe tokenizer: train one, look into one, and pass text through it.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "commands.h"
#include "config/config_file.h"
#include "text/corpus.h"
#include "text/prepare.h"
#include "text/prepare_line.h"
#include "text/tokenizer.h"
#include "text/tokenizer_check.h"
#include "text/utf8.h"

namespace thinpipe {
namespace {

struct TokenizerOptions {
  std::string model;
  std::string corpus;
  std::string vocab;
  std::string out;
  std::string input = "-";
  bool pieces = false;
  bool json = false;
};

constexpr uint64_t kRandomTexts = 1000;
constexpr size_t kMaxInputBytes = 64 << 20;

std::string read_input(const std::string& argument) {
  if (argument != "-") return argument;
  std::string text;
  std::vector<char> buffer(1 << 16);
  for (size_t count = 0; (count = std::fread(buffer.data(), 1, buffer.size(), stdin)) > 0;) {
    text.append(buffer.data(), count);
    if (text.size() > kMaxInputBytes) {
      throw UserError(fmt::format("more than {} MiB on standard input; for a corpus there is `thinpipe data prepare`",
                                  kMaxInputBytes >> 20));
    }
  }
  if (std::ferror(stdin) != 0) throw UserError("cannot read standard input");
  return text;
}

// As JSON writes a string, without the quotes: one line, whatever is in it.
std::string shown_escaped(const std::string& text) {
  const auto quoted = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

void train_one(const TokenizerOptions& options) {
  std::vector<std::string> settings{"data.corpus=" + options.corpus};
  if (!options.vocab.empty()) settings.push_back("data.vocab=" + options.vocab);
  const auto data = parse_config("", "the command line", settings).data;
  // Before the work: a place that cannot be written to is no reason to wait for it.
  auto file = AtomicFile::create(options.out).take();
  const SystemClock clock;
  std::string model;
  {
    PrepareLine line(stdout, ::isatty(STDOUT_FILENO) == 1, clock);
    model = train_corpus_tokenizer(data, std::ref(line));
  }
  file.append(model).take();
  file.commit().take();
  fmt::print("{}: {} pieces, trained on the training documents of {}\n", options.out, data.vocab, data.corpus);
}

void inspect_one(const TokenizerOptions& options) {
  const auto tokenizer = Tokenizer::load(options.model).take();
  const auto& facts = tokenizer.facts();
  const auto yes = [](bool value) { return value ? "yes" : "no"; };
  const auto id = [](int32_t value) { return value < 0 ? std::string("none") : std::to_string(value); };
  fmt::print("model: {}\nkind: {}\nvocabulary: {}\n", options.model, facts.bpe ? "BPE" : "not BPE", tokenizer.vocab());
  fmt::print("ids: begin of text {}, end of text {}, unknown {}\n", id(tokenizer.bos()), id(tokenizer.eos()),
             id(facts.unknown));
  fmt::print("byte fallback: {}\nnormaliser: {}\nadds a space in front (add_dummy_prefix): {}\n",
             yes(facts.byte_fallback), shown_escaped(facts.normalizer), yes(facts.add_dummy_prefix));
  fmt::print("removes extra spaces: {}\n", yes(facts.remove_extra_whitespaces));
  constexpr int32_t kShown = 8;
  const auto vocab = static_cast<int32_t>(tokenizer.vocab());
  auto shown = nlohmann::ordered_json::array();
  // The first ones, then the first that were learned, and the last.
  const int32_t learned = std::min(vocab, 3 + (facts.byte_fallback ? 256 : 0));
  for (const auto& [first, last] :
       {std::pair{0, std::min(3, vocab)}, std::pair{learned, std::min(learned + kShown, vocab)},
        std::pair{std::max(learned + kShown, vocab - kShown), vocab}}) {
    for (int32_t i = first; i < last; ++i) {
      fmt::print("  {:>6}  {}\n", i, shown_escaped(tokenizer.piece(i).text));
      shown.push_back({{"id", i}, {"piece", tokenizer.piece(i).text}, {"score", tokenizer.piece(i).score}});
    }
  }
  if (!options.json) return;
  const nlohmann::ordered_json object = {{"vocab", tokenizer.vocab()},
                                         {"bpe", facts.bpe},
                                         {"bos", tokenizer.bos()},
                                         {"eos", tokenizer.eos()},
                                         {"unknown", facts.unknown},
                                         {"byte_fallback", facts.byte_fallback},
                                         {"normalizer", facts.normalizer},
                                         {"add_dummy_prefix", facts.add_dummy_prefix},
                                         {"remove_extra_whitespaces", facts.remove_extra_whitespaces},
                                         {"pieces", shown}};
  fmt::print("{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void encode(const TokenizerOptions& options) {
  const auto tokenizer = Tokenizer::load(options.model).take();
  const auto text = read_input(options.input);
  const size_t valid = valid_utf8_prefix(text);
  if (valid != text.size()) {
    throw UserError(fmt::format("the text is not UTF-8: byte 0x{:02x} at offset {} is no part of a character",
                                static_cast<unsigned char>(text[valid]), valid));
  }
  std::string line;
  for (const int32_t id : tokenizer.encode(text)) {
    if (!line.empty()) line += ' ';
    line += options.pieces ? shown_escaped(tokenizer.piece(id).text) : std::to_string(id);
  }
  fmt::print("{}\n", line);
}

std::vector<int32_t> parse_ids(std::string_view text) {
  constexpr std::string_view kBetween = " \t\r\n,";
  std::vector<int32_t> ids;
  while (true) {
    const size_t start = text.find_first_not_of(kBetween);
    if (start == std::string_view::npos) return ids;
    text.remove_prefix(start);
    const std::string_view word = text.substr(0, text.find_first_of(kBetween));
    int32_t id = 0;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (code != std::errc() || end != word.data() + word.size()) {
      throw UserError(fmt::format("'{}' is no token id: give numbers, as `thinpipe tokenizer encode` prints them",
                                  shown_escaped(std::string(word.substr(0, 40)))));
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
}

void decode(const TokenizerOptions& options) {
  const auto tokenizer = Tokenizer::load(options.model).take();
  const auto text = tokenizer.decode(parse_ids(read_input(options.input))).take();
  std::fwrite(text.data(), 1, text.size(), stdout);
  // Exactly the text for whoever reads it; a person's prompt goes on a line of its own.
  if (::isatty(STDOUT_FILENO) == 1) fmt::print("\n");
}

void verify_one(const TokenizerOptions& options) {
  const auto tokenizer = Tokenizer::load(options.model).take();
  uint64_t documents = 0, bytes = 0;
  if (!options.corpus.empty()) {
    auto reader = Corpus::open(options.corpus, "CORPUS").read();
    std::string document;
    while (reader.next(document).take()) {
      check_round_trip(tokenizer, document,
                       fmt::format("{} document {} (text byte {})", options.corpus, documents, bytes))
          .take();
      documents += 1;
      bytes += document.size();
    }
  }
  for (uint64_t i = 0; i < kRandomTexts; ++i) {
    check_round_trip(tokenizer, random_text(i), fmt::format("{}: random text {}", options.model, i)).take();
  }
  fmt::print("{}: fine: {} random texts{} came back as they were\n", options.model, kRandomTexts,
             documents > 0 ? fmt::format(" and {} documents ({} bytes) of {}", documents, bytes, options.corpus) : "");
}

}  // namespace

void add_tokenizer_commands(CLI::App& app) {
  auto options = std::make_shared<TokenizerOptions>();
  auto* tokenizer = app.add_subcommand("tokenizer", "train and inspect tokenizers, encode and decode with them");
  tokenizer->require_subcommand(1);
  tokenizer->footer(
      "Examples:\n  thinpipe tokenizer train books/ --vocab 8192 --out books.model\n"
      "  thinpipe tokenizer encode books.model \"Call me Ishmael.\"\n"
      "Tokenizers are sentencepiece models: those trained here, or those of others, such as a LLaMA's.");
  const auto add = [&](const char* name, const char* help, const char* examples, auto action) {
    auto* command = tokenizer->add_subcommand(name, help);
    command->footer(std::string("Examples:\n") + examples);
    command->callback([options, action] { action(*options); });
    return command;
  };
  const auto takes_model = [&](CLI::App* command) {
    command->add_option("model", options->model, "a sentencepiece .model file")->type_name("FILE")->required();
  };
  auto* training =
      add("train", "train a BPE tokenizer, as preparing the corpus would",
          "  thinpipe tokenizer train kjv --vocab 4096 --out kjv.model\n"
          "  thinpipe tokenizer train books/ --vocab 16384 --out books.model\n"
          "It learns from the corpus's training documents and writes one file, which data.tokenizer takes.",
          train_one);
  training->add_option("corpus", options->corpus, "kjv, a text or .jsonl file, or a folder of them")->required();
  training->add_option("--vocab", options->vocab, "pieces, as data.vocab");
  training->add_option("--out", options->out, "the .model file to write")->required();
  auto* inspection = add("inspect", "what a tokenizer is: size, ids, how it treats text, a few pieces",
                         "  thinpipe tokenizer inspect kjv.model\n"
                         "  thinpipe tokenizer inspect kjv.model --json | tail -n 1\n"
                         "It only reads the file; what it prints is what training and export will rely on.",
                         inspect_one);
  takes_model(inspection);
  inspection->add_flag("--json", options->json, "one JSON object on the last line");
  auto* encoding = add("encode", "text to ids, on one line",
                       "  thinpipe tokenizer encode kjv.model \"In the beginning\"\n"
                       "  thinpipe tokenizer encode kjv.model --pieces <chapter.txt\n"
                       "One line of ids, or of pieces, goes to standard output.",
                       encode);
  takes_model(encoding);
  encoding->add_option("text", options->input, "none or -: standard input");
  encoding->add_flag("--pieces", options->pieces, "the pieces instead of their ids");
  auto* decoding =
      add("decode", "ids to text",
          "  thinpipe tokenizer decode kjv.model \"310 270 1189\"\n"
          "  thinpipe tokenizer encode kjv.model <a.txt | thinpipe tokenizer decode kjv.model | cmp - a.txt\n"
          "The text goes to standard output as it was.",
          decode);
  takes_model(decoding);
  decoding->add_option("ids", options->input, "numbers between spaces or commas; none or -: standard input");
  auto* verification = add("verify", "do texts come back from a tokenizer as they were?",
                           "  thinpipe tokenizer verify kjv.model\n  thinpipe tokenizer verify llama.model books/\n"
                           "One line says so if all came back; else it names the first that did not, with exit code 2.",
                           verify_one);
  takes_model(verification);
  verification->add_option("file", options->corpus, "a text to try, besides 1000 random ones");
}

}  // namespace thinpipe
