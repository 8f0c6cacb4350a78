// `train book.txt`, `serve book.txt`: the argument is the text to train on, and there is no config.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace thinpipe {

bool is_text(const std::string& argument);

// Whether --set changes this key.
bool sets(const std::vector<std::string>& overrides, std::string_view key);

// Moves a text from the place of the config to the overrides: --set data.corpus says the same. Throws UserError if it
// is a config whose name lacks the ending, which would otherwise be learned as text, or if there are two texts.
void take_text_argument(std::string& config, std::vector<std::string>& overrides);

// Adds data.vocab to the overrides if the text is too small for the usual vocabulary, and says so. `all`: the overrides
// and those of other options.
void fit_vocabulary(std::vector<std::string>& overrides, const std::vector<std::string>& all, bool live);

}  // namespace thinpipe
