// One file of a corpus as a stream of UTF-8 text, and where in it a reader is. Stands between the file's bytes
// (byte_reader.h) and the documents that corpus.h cuts from its text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "config/run_config.h"
#include "text/byte_reader.h"
#include "text/decoding.h"

namespace thinpipe {

// How the files of a corpus are read: data.encoding, data.invalid and data.field.
struct TextForm {
  Encoding encoding = Encoding::kUtf8;
  Invalid invalid = Invalid::kRefuse;
  std::string field = "text";
};

// For one thread. Errors name the file and end the reading.
class TextInput {
 public:
  // Messages name the config's keys if `by_config`, that is if the user can set them.
  TextInput(const std::filesystem::path& path, TextForm form, bool by_config);

  // The text that was read into memory but not consumed; reads more if there is none. Empty at the end of the file. May
  // hold invalid UTF-8 if that is to be refused: check_utf8() says where.
  Result<std::string_view> peek();
  void consume(size_t count) { position_ += count; }

  // The next line without its end; false at the end of the file.
  Result<bool> next_line(std::string& line);

  // Advances the position for messages; called with every text that was handed out.
  void passed(std::string_view text);
  // An error at `offset` bytes after that position, in `text`. Bytes are those of the text as UTF-8.
  Error fault(size_t offset, std::string_view what, std::string_view text = {}) const;
  Status check_utf8(std::string_view text) const;
  // What helps, for the end of a message: "; set " and the settings, or what else to do if the user can set none.
  std::string hint(std::string_view settings, std::string_view otherwise = "convert it to UTF-8") const;

  // How many sequences of bytes were replaced or skipped so far.
  uint64_t invalid_count() const { return decoder_ ? decoder_->invalid_count() : 0; }

 private:
  Status begin(std::string_view beginning);
  Result<Encoding> found_encoding(std::string_view beginning) const;

  std::filesystem::path path_;
  TextForm form_;
  bool by_config_;
  std::unique_ptr<ByteReader> bytes_;
  std::optional<Decoder> decoder_;  // once the encoding is known
  std::string text_;                // decoded
  size_t position_ = 0;             // in text_
  bool ended_ = false;
  uint64_t passed_bytes_ = 0;
  uint64_t passed_lines_ = 0;
};

}  // namespace thinpipe
