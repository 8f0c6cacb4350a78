// bench data: how fast a corpus is prepared, and how much memory that takes. The text is made up: words have the
// frequencies of a natural language (Zipf) and are spelled from syllables; the same size gives the same text. A child
// process with its own data folder runs `thinpipe data prepare`.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/files.h"
#include "base/result.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "run/child_process.h"

namespace thinpipe {
namespace {

constexpr uint64_t kWords = 60'000;
constexpr size_t kDraws = 4096;

// Frequent words are short, as in natural languages.
std::string word_of(uint64_t rank) {
  static constexpr std::string_view kStarts[] = {"th", "s", "w", "b", "m", "h", "f", "pr", "d", "st",
                                                 "l",  "r", "c", "p", "n", "t", "g", "br", "v", "ch"};
  static constexpr std::string_view kMiddles[] = {"e", "a", "o", "i", "ea", "ou", "u", "ai"};
  static constexpr std::string_view kEnds[] = {"", "n", "r", "s", "t", "d", "l", "nd", "ng", "m"};
  constexpr uint64_t kSyllables = std::size(kStarts) * std::size(kMiddles) * std::size(kEnds);
  // A fixed shuffle, so that words of similar rank are not spelled alike.
  uint64_t code = CounterRng(1, "spelling").bits32(rank) % kSyllables;
  std::string word;
  for (uint64_t rest = rank + 1; rest > 0; rest /= 400) {
    word += kStarts[code % std::size(kStarts)];
    word += kMiddles[code / std::size(kStarts) % std::size(kMiddles)];
    word += kEnds[code / std::size(kStarts) / std::size(kMiddles)];
    code = (code * 31 + rest * 17 + 7) % kSyllables;
  }
  return word;
}

class MadeUpText {
 public:
  MadeUpText() {
    words_.reserve(kWords);
    for (uint64_t rank = 0; rank < kWords; ++rank) words_.push_back(word_of(rank));
  }

  // Appends the next paragraph.
  void append(std::string& text) {
    for (uint32_t sentences = 1 + draw() % 7; sentences > 0; --sentences) {
      const uint32_t words = 4 + draw() % 20;
      for (uint32_t i = 0; i < words; ++i) {
        const size_t start = text.size();
        text += words_[rank()];
        if (i == 0) text[start] = static_cast<char>(text[start] - 'a' + 'A');
        text += i + 1 == words ? ". " : draw() % 12 == 0 ? ", " : " ";
      }
    }
    text.back() = '\n';
  }

 private:
  uint32_t draw() {
    if (next_ == draws_.size()) {
      rng_.fill_bits32(filled_, draws_);
      filled_ += draws_.size();
      next_ = 0;
    }
    return draws_[next_++];
  }
  // Probability about 1 / (rank + 1).
  size_t rank() {
    const double share = static_cast<double>(draw()) * 0x1p-32;
    return std::min<size_t>(kWords - 1, static_cast<size_t>(std::exp(share * std::log(kWords + 1.0))) - 1);
  }

  std::vector<std::string> words_;
  const CounterRng rng_{1, "made-up text"};
  std::vector<uint32_t> draws_ = std::vector<uint32_t>(kDraws);
  size_t next_ = kDraws;
  uint64_t filled_ = 0;
};

void write_text(const std::filesystem::path& path, uint64_t bytes) {
  auto file = AtomicFile::create(path).take();
  MadeUpText text;
  std::string buffer;
  for (uint64_t written = 0; written < bytes;) {
    buffer.clear();
    while (buffer.size() < (1 << 20) && written + buffer.size() < bytes) text.append(buffer);
    file.append(buffer).take();
    written += buffer.size();
  }
  file.commit().take();
}

// A folder that is removed with its contents.
struct BenchFolder {
  std::filesystem::path path = data_dir() / "bench" / fmt::format("data-{}", ::getpid());

  BenchFolder() { make_directories(path).take(); }
  ~BenchFolder() { (void)remove_tree(path); }
};

nlohmann::json last_line_of(const std::filesystem::path& log) {
  std::string text = read_file(log).take();
  while (text.ends_with('\n')) text.pop_back();
  return nlohmann::json::parse(text.substr(text.rfind('\n') + 1), nullptr, /*allow_exceptions=*/false);
}

}  // namespace

void bench_data(const BenchDataOptions& options, bool json) {
  const BenchFolder folder;
  const auto text = folder.path / "text.txt";
  const auto log = folder.path / "log";
  write_text(text, options.bytes);
  ::setenv("THINPIPE_DATA_DIR", (folder.path / "data").c_str(), 1);
  auto child = ChildProcess::start(options.program, {"data", "prepare", text.string(), "--json"}, log).take();
  auto end = child.poll();
  for (; !end; end = child.poll()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto said = last_line_of(log);
  if (end->exit_code != 0 || !said.is_object()) throw UserError("bench data: " + last_words(log));
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  const double peak_mb = static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
  const auto tokens = said["train"]["tokens"].get<uint64_t>() + said["val"]["tokens"].get<uint64_t>();
  const auto took = said["seconds"].get<double>();
  const auto rate = said["mb_per_s"].get<double>();
  fmt::print("{:.1f} MB of text in {:.1f} s: {:.2f} MB/s, {} tokens, at most {:.0f} MB resident\n",
             static_cast<double>(options.bytes) / 1e6, took, rate, tokens, peak_mb);
  if (!json) return;
  const nlohmann::ordered_json object = {{"bytes", options.bytes},      {"seconds", took},  {"mb_per_s", rate},
                                         {"peak_resident_mb", peak_mb}, {"tokens", tokens}, {"id", said["id"]}};
  fmt::print("{}\n", object.dump());
}

}  // namespace thinpipe
