// thinpipe generate: text from a prompt, or a prompt loop.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "commands.h"
#include "model_argument.h"
#include "models/generator.h"
#include "text/corpus.h"

namespace thinpipe {
namespace {

constexpr int64_t kLoopContext = 4096;  // tokens that a prompt loop keeps in mind at most

struct GenerateOptions {
  ModelArgument model;
  std::string prompt;
  bool has_prompt = false;
  PickOptions pick;
  int64_t max_tokens = 200;
  bool interactive = false;
  bool json = false;
};

struct Generated {
  std::string text;
  int64_t tokens = 0;
  double seconds = 0;
  bool ended = false;    // by the model's end-of-text token
  bool stopped = false;  // by the person, with ctrl-C

  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

volatile std::sig_atomic_t interrupted = 0;

// While it lives, a first ctrl-C only sets `interrupted`; a second one ends the program, as one before and after does.
class Interruptible {
 public:
  Interruptible() {
    interrupted = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, &before_);
  }
  ~Interruptible() { ::sigaction(SIGINT, &before_, nullptr); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  struct sigaction before_ {};
};

void check_text(const std::string& text, std::string_view name) {
  if (const size_t valid = valid_utf8_prefix(text); valid < text.size()) {
    throw UserError(fmt::format("{}: not UTF-8 at byte {}", name, valid));
  }
}

// Continues what the generator has read, printing the text as it comes, until it is `interrupted`.
Generated continue_text(Generator& generator, TokenPicker& picker, const Tokenizer& tokenizer, int64_t max_tokens,
                        bool print) {
  const SystemClock clock;
  const auto start = clock.now();
  TextStream stream(tokenizer, generator.tokens());
  Generated result;
  const auto give = [&](const std::string& text) {
    result.text += text;
    if (print && !text.empty()) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
  };
  while (result.tokens < max_tokens && !result.ended && !result.stopped) {
    const int32_t token = generator.next(picker).take();
    ++result.tokens;
    result.ended = token == tokenizer.eos() || token == tokenizer.bos();  // a new document begins: this one is over
    if (!result.ended) give(stream.add(token));
    result.stopped = interrupted != 0;
  }
  give(stream.finish());
  result.seconds = std::chrono::duration<double>(clock.now() - start).count();
  return result;
}

// Statistics are not part of the text: they go where it does not.
void say_speed(const Generated& result) {
  fmt::print(stderr, "[{} tokens, {:.1f} tokens/s{}]\n", result.tokens, result.tokens_per_s(),
             result.ended     ? ", the text is complete"
             : result.stopped ? ", interrupted; ctrl-C once more ends the program"
                              : "");
}

std::vector<int32_t> with_begin(const Tokenizer& tokenizer, const std::string& text) {
  auto tokens = tokenizer.encode(text);
  tokens.insert(tokens.begin(), tokenizer.bos());
  return tokens;
}

// The begin of text and as much of the end as leaves half of the context for what is to come.
std::vector<int32_t> newest_part(std::vector<int32_t> tokens, int64_t context) {
  const auto most = static_cast<size_t>(std::max<int64_t>(2, context / 2));
  if (tokens.size() > most) tokens.erase(tokens.begin() + 1, tokens.end() - static_cast<std::ptrdiff_t>(most - 1));
  return tokens;
}

void generate_once(const GenerateOptions& options, const ModelFiles& files, const Stage& stage,
                   const std::string& prompt) {
  check_text(prompt, "the prompt");
  TokenPicker picker(options.pick);
  auto tokens = with_begin(files.tokenizer, prompt);
  const auto prompt_tokens = static_cast<int64_t>(tokens.size());
  if (prompt_tokens > files.context()) {
    tokens = newest_part(std::move(tokens), files.context());
    fmt::print(stderr, "the prompt has {} tokens and the model looks back {}: its last {} are read\n", prompt_tokens,
               files.context(), tokens.size() - 1);
  }
  // Some models look back a hundred thousand tokens; the cache is made for what is needed.
  const auto needed = static_cast<int64_t>(tokens.size()) + options.max_tokens;
  Generator generator(stage, files.config.model, std::min(files.context(), needed), files.tokenizer.vocab());
  generator.read(tokens);
  if (!options.json) {
    fmt::print("{}", prompt);
    std::fflush(stdout);
  }
  const auto result = continue_text(generator, picker, files.tokenizer, options.max_tokens, !options.json);
  if (!options.json) {
    fmt::print("\n");
    std::fflush(stdout);
    return say_speed(result);
  }
  const nlohmann::ordered_json object = {{"prompt", prompt},
                                         {"text", result.text},
                                         {"prompt_tokens", prompt_tokens},
                                         {"tokens", result.tokens},
                                         {"tokens_per_s", result.tokens_per_s()},
                                         {"ended", result.ended}};
  fmt::print("{}\n", object.dump());
}

// What was said stays in the context: a line is read after all that came before it.
void prompt_loop(const GenerateOptions& options, const ModelFiles& files, Generator& generator) {
  fmt::print(stderr,
             "{}. Type the beginning of a text; /reset forgets what was said, /quit (or ctrl-D) ends.\n"
             "ctrl-C ends an answer.\n",
             files.title);
  TokenPicker picker(options.pick);
  std::string said, line;
  while (true) {
    fmt::print("> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line) || line == "/quit") break;
    if (line == "/reset") {
      said.clear();
      continue;
    }
    if (line.starts_with('/')) {
      fmt::print(stderr, "{}: the commands are /reset and /quit\n", line);
      continue;
    }
    if (valid_utf8_prefix(line) < line.size()) {
      fmt::print(stderr, "that line is not UTF-8; nothing of it was read\n");
      continue;
    }
    // Tokenised anew as one text: a line by itself would begin with the space that sentencepiece puts in front.
    said += (said.empty() ? "" : "\n") + line;
    const Interruptible answer;
    generator.reset();
    generator.read(newest_part(with_begin(files.tokenizer, said), std::min(files.context(), kLoopContext)));
    fmt::print("{}", line);
    const auto result = continue_text(generator, picker, files.tokenizer, options.max_tokens, true);
    said += result.text;
    if (result.ended) said.clear();
    fmt::print("\n");
    std::fflush(stdout);
    say_speed(result);
  }
  fmt::print("\n");
}

void generate(const GenerateOptions& options) {
  const TokenPicker checked(options.pick);  // a wrong option is named before a model is loaded
  if (options.max_tokens < 1) throw UserError(fmt::format("--max-tokens {}: needs 1 or more", options.max_tokens));
  if (options.interactive && options.has_prompt) throw UserError("--interactive asks for prompts: leave out --prompt");
  const bool loop = options.interactive || (!options.has_prompt && ::isatty(STDIN_FILENO) == 1);
  if (loop && options.json) {
    throw UserError("--json: is for a single text; give its --prompt (a prompt loop prints text as it comes)");
  }
  const auto files = open_model(options.model);
  if (files.context() < 2) {
    throw UserError(
        fmt::format("{}: looks back {} token(s); text can be continued from 2 on", files.title, files.context()));
  }
  const auto stage = load_model(files, options.model.device);
  if (loop) {
    Generator generator(*stage, files.config.model, std::min(files.context(), kLoopContext), files.tokenizer.vocab());
    return prompt_loop(options, files, generator);
  }
  const auto prompt =
      options.has_prompt ? options.prompt : std::string(std::istreambuf_iterator<char>(std::cin.rdbuf()), {});
  generate_once(options, files, *stage, prompt);
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  auto* command = app.add_subcommand("generate", "text from a prompt, by a trained model");
  add_model_argument(*command, options->model, /*computes=*/true);
  auto* prompt =
      command->add_option("--prompt", options->prompt,
                          "start of the text; default: a prompt loop, or standard input if that is not a terminal");
  command->add_option("--max-tokens", options->max_tokens, "maximum number of tokens to add")->capture_default_str();
  command->add_option("--temperature", options->pick.temperature, "randomness; 0: always the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", options->pick.top_k, "sample from the K most likely tokens only; 0: all")
      ->capture_default_str();
  command
      ->add_option("--top-p", options->pick.top_p, "sample from the smallest set of tokens with this total probability")
      ->capture_default_str();
  command->add_option("--seed", options->pick.seed, "the same seed gives the same text")->capture_default_str();
  command->add_flag("--interactive", options->interactive,
                    "start a prompt loop even if standard input is not a terminal");
  command->add_flag("--json", options->json, "print one JSON object instead of streaming the text");
  command->footer(
      "Examples:\n  thinpipe generate --prompt \"In the beginning\"\n"
      "  thinpipe generate my-run --prompt \"And he said\" --temperature 0.5 --seed 7 --max-tokens 400\n"
      "  thinpipe generate ./llama-hf < prompt.txt\n"
      "  thinpipe generate                       asks for prompts, and remembers what was said\n"
      "The text goes to standard output as it comes, its speed to standard error.");
  command->callback([options, prompt] {
    options->has_prompt = prompt->count() > 0;
    generate(*options);
  });
}

}  // namespace thinpipe
