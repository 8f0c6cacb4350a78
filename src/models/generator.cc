#include "models/generator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/result.h"
#include "model/fill.h"

namespace thinpipe {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD, the text of an incomplete character

}  // namespace

TokenPicker::TokenPicker(const PickOptions& options) : options_(options), draws_(options.seed, "generate") {
  if (!(options.temperature >= 0 && options.temperature <= 100)) {
    throw UserError(fmt::format("--temperature {}: needs a number from 0 to 100", options.temperature));
  }
  if (options.top_k < 0) throw UserError(fmt::format("--top-k {}: needs 0 (all) or more", options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw UserError(fmt::format("--top-p {}: needs a number above 0, at most 1", options.top_p));
  }
}

Result<int32_t> TokenPicker::pick(std::span<const float> logits) {
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == INFINITY) {
      return Error{"the model's logits are not finite: its weights are damaged"};
    }
  }
  const uint64_t number = picked_++;
  if (options_.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const size_t kept =
      options_.top_k == 0 ? logits.size() : std::min(logits.size(), static_cast<size_t>(options_.top_k));
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept), order_.end(), likelier);

  const double best = logits[static_cast<size_t>(order_[0])];
  shares_.resize(kept);
  for (size_t i = 0; i < kept; ++i) {
    shares_[i] = std::exp((static_cast<double>(logits[static_cast<size_t>(order_[i])]) - best) / options_.temperature);
  }
  const double all = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  size_t nucleus = 0;
  double inside = 0;
  while (nucleus < kept && (nucleus == 0 || inside < options_.top_p * all)) inside += shares_[nucleus++];

  double left = draws_.uniform(number) * inside;
  for (size_t i = 0; i < nucleus; ++i) {
    left -= shares_[i];
    if (left < 0) return order_[i];
  }
  return order_[nucleus - 1];  // rounding
}

Generator::Generator(const Stage& stage, const ModelConfig& config, int64_t context, std::optional<int64_t> pieces)
    : stage_(stage), context_(context), pieces_(pieces), cache_(config, context, stage.options()) {
  TP_CHECK(context >= 2, "a context of {} token(s) has no room for the next one", context);
}

void Generator::read(std::span<const int32_t> tokens) {
  while (!tokens.empty()) {
    if (cache_.length() == context_) make_room();
    const auto part = tokens.first(std::min(tokens.size(), static_cast<size_t>(context_ - cache_.length())));
    extend(part);
    tokens = tokens.subspan(part.size());
  }
}

void Generator::extend(std::span<const int32_t> tokens) {
  const auto x = stage_.extend(ids_tensor(tokens, stage_.options()), cache_);
  logits_ = floats_of(stage_.logits(x.narrow(0, x.size(0) - 1, 1)));
  if (pieces_) logits_.resize(std::min(logits_.size(), static_cast<size_t>(*pieces_)));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void Generator::make_room() {
  const size_t kept = static_cast<size_t>(context_ - 1) / 2;
  std::vector<int32_t> again{tokens_.front()};
  again.insert(again.end(), tokens_.end() - static_cast<std::ptrdiff_t>(kept), tokens_.end());
  reset();
  extend(again);
}

Result<int32_t> Generator::next(TokenPicker& picker) {
  TP_CHECK(!tokens_.empty(), "nothing was read yet");
  const int32_t token = TRY(picker.pick(logits_));
  read(std::span(&token, 1));
  return token;
}

void Generator::reset() {
  cache_.shorten(0);
  tokens_.clear();
}

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before)
    : tokenizer_(tokenizer), ids_(before.begin(), before.end()) {
  find_stand_in();
  take(/*all=*/true);
}

// A token with text. Decoding after it is the same as after any text that ends with a whole character: a space is
// dropped only at the very beginning, and only bytes that are not a character yet depend on those before.
void TextStream::find_stand_in() {
  // Such models change or drop text depending on what follows.
  if (tokenizer_.facts().has_denormalizer_rules || tokenizer_.facts().whitespace_as_suffix) return;
  for (int32_t id = 0; id < tokenizer_.vocab() && !stand_in_; ++id) {
    if (tokenizer_.piece(id).type != PieceType::kNormal && tokenizer_.piece(id).type != PieceType::kByte) continue;
    const auto text = tokenizer_.decode(std::span(&id, 1));
    if (!text || text.value().empty() || text.value().ends_with(kReplacement)) continue;
    stand_in_ = id;
    stand_in_bytes_ = text.value().size();
  }
}

std::string TextStream::add(int32_t token) {
  ids_.push_back(token);
  return take(/*all=*/false);
}

std::string TextStream::finish() { return take(/*all=*/true); }

std::string TextStream::take(bool all) {
  const std::string text = tokenizer_.decode(ids_).take();
  size_t end = text.size(), held = 0;
  // The bytes of one character read as at most three replacements before its last byte arrives.
  for (; !all && held < 3 && end >= given_ + kReplacement.size(); ++held) {
    if (std::string_view(text).substr(end - kReplacement.size(), kReplacement.size()) != kReplacement) break;
    end -= kReplacement.size();
  }
  auto fresh = end > given_ ? text.substr(given_, end - given_) : std::string();
  given_ = std::max(given_, end);
  const auto kept = std::span(ids_).last(std::min(held, ids_.size()));
  const bool bytes =
      std::all_of(kept.begin(), kept.end(), [&](int32_t id) { return tokenizer_.piece(id).type == PieceType::kByte; });
  if (stand_in_ && !text.empty() && bytes) {
    std::vector<int32_t> shorter{*stand_in_};
    shorter.insert(shorter.end(), kept.begin(), kept.end());
    ids_ = std::move(shorter);
    given_ = stand_in_bytes_;
  }
  return fresh;
}

}  // namespace thinpipe
