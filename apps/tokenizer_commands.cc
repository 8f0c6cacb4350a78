// thinpipe tokenizer train: trains the tokenizer of a corpus and writes it to a file.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "commands.h"
#include "config/config_file.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

struct TokenizerOptions {
  std::string corpus;
  std::string vocab;
  std::string out;
};

void train_tokenizer_file(const TokenizerOptions& options) {
  std::vector<std::string> settings{"data.corpus=" + options.corpus};
  if (!options.vocab.empty()) settings.push_back("data.vocab=" + options.vocab);
  const auto data = parse_config("", "the command line", settings).data;
  // Before the work, so that a place that cannot be written to is refused at once.
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

}  // namespace

void add_tokenizer_commands(CLI::App& app) {
  auto* tokenizer = app.add_subcommand("tokenizer", "train a tokenizer");
  tokenizer->require_subcommand(1);
  tokenizer->footer(
      "Examples:\n  thinpipe tokenizer train books/ --vocab 8192 --out books.model\n"
      "  thinpipe train --set data.tokenizer=books.model --set data.vocab=8192 --set data.corpus=books/\n"
      "Tokenizers are sentencepiece models. Debian's package sentencepiece has spm_encode and spm_decode for them.");
  auto options = std::make_shared<TokenizerOptions>();
  auto* command = tokenizer->add_subcommand("train", "train a BPE tokenizer, as preparing the corpus would");
  command->add_option("corpus", options->corpus, "kjv, a text or .jsonl file, or a folder of them")->required();
  command->add_option("--vocab", options->vocab, "number of pieces; default: data.vocab's");
  command->add_option("--out", options->out, "the .model file to write")->required();
  command->footer(
      "Examples:\n  thinpipe tokenizer train kjv --vocab 4096 --out kjv.model\n"
      "  thinpipe tokenizer train books/ --vocab 16384 --out books.model\n"
      "It learns from the corpus's training documents and writes one file, which data.tokenizer takes.");
  command->callback([options] { train_tokenizer_file(*options); });
}

}  // namespace thinpipe
