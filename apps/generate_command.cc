// thinpipe generate: text from a prompt, or a prompt loop.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/line.h"
#include "base/result.h"
#include "base/say.h"
#include "commands.h"
#include "line_editor.h"
#include "model_argument.h"
#include "models/generator.h"
#include "text/corpus.h"

namespace thinpipe {
namespace {

constexpr int64_t kLoopContext = 4096;  // maximum context of a prompt loop, in tokens

struct Generated {
  std::string text;
  int64_t tokens = 0;
  double seconds = 0;
  bool ended = false;    // the model wrote its end-of-text token
  bool stopped = false;  // by ctrl-C

  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

volatile std::sig_atomic_t interrupted = 0;

// While it lives, the first ctrl-C only sets `interrupted`, and a second one ends the program.
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
    result.ended = token == tokenizer.eos() || token == tokenizer.bos();  // a new document begins
    if (!result.ended) give(stream.add(token));
    result.stopped = interrupted != 0;
  }
  give(stream.finish());
  result.seconds = std::chrono::duration<double>(clock.now() - start).count();
  return result;
}

// To standard error, because it is not part of the text.
void say_speed(const Generated& result) {
  fmt::print(stderr, "[{} tokens, {:.1f} tokens/s{}]\n", result.tokens, result.tokens_per_s(),
             result.ended     ? ", the text is complete"
             : result.stopped ? ", interrupted; press ctrl-C again to end the program"
                              : "");
}

std::vector<int32_t> with_begin(const Tokenizer& tokenizer, const std::string& text) {
  auto tokens = tokenizer.encode(text);
  tokens.insert(tokens.begin(), tokenizer.bos());
  return tokens;
}

// The begin-of-text token and as much of the end as leaves half of the context for new tokens.
std::vector<int32_t> newest_part(std::vector<int32_t> tokens, int64_t context) {
  const auto most = static_cast<size_t>(std::max<int64_t>(2, context / 2));
  if (tokens.size() > most) tokens.erase(tokens.begin() + 1, tokens.end() - static_cast<std::ptrdiff_t>(most - 1));
  return tokens;
}

void generate_once(const GenerateArguments& arguments, const ModelFiles& files, const Stage& stage,
                   const std::string& prompt) {
  check_text(prompt, "the prompt");
  TokenPicker picker(arguments.pick);
  auto tokens = with_begin(files.tokenizer, prompt);
  const auto prompt_tokens = static_cast<int64_t>(tokens.size());
  if (prompt_tokens > files.context()) {
    tokens = newest_part(std::move(tokens), files.context());
    fmt::print(stderr, "the prompt has {} tokens and the model's context is {}: using the last {} tokens\n",
               prompt_tokens, files.context(), tokens.size() - 1);
  }
  // Some models have a context of a hundred thousand tokens; the cache holds only what is needed.
  const auto needed = static_cast<int64_t>(tokens.size()) + arguments.max_tokens;
  Generator generator(stage, files.config.model, std::min(files.context(), needed), files.tokenizer.vocab());
  generator.read(tokens);
  if (!arguments.json) {
    fmt::print("{}", prompt);
    std::fflush(stdout);
  }
  const auto result = continue_text(generator, picker, files.tokenizer, arguments.max_tokens, !arguments.json);
  if (!arguments.json) {
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

// The conversation stays in the context: each line is read after everything before it.
void prompt_loop(const GenerateArguments& arguments, const ModelFiles& files, Generator& generator) {
  const auto help = fmt::format(
      "{}. Type the beginning of a text, and the model continues it. /reset forgets all text, ctrl-C ends an answer, "
      "/quit or ctrl-D ends the program.\n",
      files.title);
  fmt::print(stderr, "{}", folded(help, room_of(stderr)));
  TokenPicker picker(arguments.pick);
  LineEditor editor;
  std::string said;
  while (const auto typed = editor.read("> ")) {
    const auto& line = *typed;
    if (line == "/quit") break;
    if (line == "/reset") {
      said.clear();
      continue;
    }
    if (line.starts_with('/')) {
      fmt::print(stderr, "{}: the commands are /reset and /quit\n", line);
      continue;
    }
    if (valid_utf8_prefix(line) < line.size()) {
      fmt::print(stderr, "that line is not UTF-8 and was ignored\n");
      continue;
    }
    // Tokenised as one text: sentencepiece would put a space before a line of its own.
    said += (said.empty() ? "" : "\n") + line;
    const Interruptible answer;
    generator.reset();
    generator.read(newest_part(with_begin(files.tokenizer, said), std::min(files.context(), kLoopContext)));
    fmt::print("{}", line);
    const auto result = continue_text(generator, picker, files.tokenizer, arguments.max_tokens, true);
    said += result.text;
    if (result.ended) said.clear();
    fmt::print("\n");
    std::fflush(stdout);
    say_speed(result);
  }
  fmt::print("\n");
}

}  // namespace

void generate(const GenerateArguments& arguments) {
  const TokenPicker checked(arguments.pick);  // refuses a wrong option before the model is loaded
  if (arguments.max_tokens < 1) throw UserError(fmt::format("--max-tokens {}: needs at least 1", arguments.max_tokens));
  if (arguments.interactive && arguments.has_prompt)
    throw UserError("--interactive asks for prompts: leave out --prompt");
  const bool loop = arguments.interactive || (!arguments.has_prompt && ::isatty(STDIN_FILENO) == 1);
  if (loop && arguments.json) {
    throw UserError("--json: needs --prompt; a prompt loop streams its text");
  }
  const auto files = open_model(arguments.model);
  if (files.context() < 2) {
    throw UserError(fmt::format("{}: has a context of {} token(s); generating text needs at least 2", files.title,
                                files.context()));
  }
  const auto stage = load_model(files, arguments.model.device);
  if (loop) {
    Generator generator(*stage, files.config.model, std::min(files.context(), kLoopContext), files.tokenizer.vocab());
    return prompt_loop(arguments, files, generator);
  }
  const auto prompt =
      arguments.has_prompt ? arguments.prompt : std::string(std::istreambuf_iterator<char>(std::cin.rdbuf()), {});
  generate_once(arguments, files, *stage, prompt);
}

}  // namespace thinpipe
