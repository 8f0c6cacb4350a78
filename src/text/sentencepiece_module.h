// The part of sentencepiece that we use, behind an interface. Debian's library cannot be linked: it exports the symbols
// of its own, older protobuf, and libtorch loads the system's; in one program the two call each other's functions and
// crash. So sentencepiece lives in a module (sentencepiece_module.cc) that is loaded on first use with its symbols
// bound to itself. Only that file includes sentencepiece's headers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thinpipe {

// A loaded .model; any number of threads may use it.
class PieceModel {
 public:
  virtual ~PieceModel() = default;
  virtual int32_t piece_count() const = 0;
  virtual int32_t bos() const = 0;  // below 0: none
  virtual int32_t eos() const = 0;
  // Returns "" or the reason of the failure.
  virtual std::string encode(std::string_view text, std::vector<int32_t>* ids) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids, std::string* text) const = 0;
};

// Training text in chunks, which sentencepiece calls sentences.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  // The next chunk, valid until the next call; null at the end.
  virtual const std::string* next() = 0;
};

struct SentencePieceApi {
  // Null if the bytes are not a complete model.
  std::unique_ptr<PieceModel> (*load)(std::string_view model);
  // Fills *model and returns "", or returns sentencepiece's reason.
  std::string (*train)(const std::vector<std::pair<std::string, std::string>>& options, ChunkSource& chunks,
                       std::string* model);
};

// Loads the module on first use (tokenizer.cc). Throws UserError if it is not where the build or the installation put
// it.
const SentencePieceApi& sentencepiece_api();

}  // namespace thinpipe
