// Whether this build has a sanitizer, and what tests cannot do then.
#pragma once

namespace thinpipe::test {

#ifdef THINPIPE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
// In a program with libtorch, a sanitizer's build cannot load the tokenizer module (sentencepiece_module.h). Runs of
// small.toml work there all the same, because write_small_run() prepares their corpus with another program.
inline constexpr bool kTokenises = !kSanitized;

}  // namespace thinpipe::test
