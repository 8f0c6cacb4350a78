// Turns the bytes of a text file into UTF-8, piece by piece: data.encoding says what they are, data.invalid what
// happens to bytes that mean nothing in that encoding. Stands between a file's bytes (byte_reader.h) and its documents.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/run_config.h"

namespace thinpipe {

// Which of the encodings other than UTF-8 the beginning of a file shows: by a byte order mark, or because most of its
// characters are ASCII with a zero byte before or after each. kUtf8 if it shows none. Reads at most its first 4 KiB.
Encoding shown_encoding(std::string_view beginning);

// Decodes one file. A byte order mark at its beginning is dropped, in every encoding but latin-1.
class Decoder {
 public:
  // `encoding` must not be kAuto.
  Decoder(Encoding encoding, Invalid invalid) : encoding_(encoding), invalid_(invalid) {}

  // Appends the UTF-8 form of the next bytes to `out`. A character may be cut between two calls; `end` says that no
  // bytes follow. Returns false at the first invalid bytes if they are to be refused; the decoder is of no use then.
  // UTF-8 that is to be refused passes unchecked, because its reader knows lines and can say where it is wrong.
  bool decode(std::string_view bytes, bool end, std::string& out);

  // Where in the file the bytes are for which decode() returned false.
  uint64_t fault_at() const { return fault_at_; }
  // How many sequences of bytes were replaced or skipped, counted as Unicode recommends (maximal subparts).
  uint64_t invalid_count() const { return invalid_count_; }

 private:
  // `left`: the bytes from the invalid sequence on.
  bool bad(std::string_view left, std::string& out);
  bool decode_utf8(std::string_view bytes, bool end, std::string& out);
  bool decode_utf16(std::string_view bytes, bool end, std::string& out);

  Encoding encoding_;
  Invalid invalid_;
  bool begun_ = false;
  bool big_endian_ = false;
  std::string rest_;          // the beginning of a character, or of the file
  uint64_t given_bytes_ = 0;  // to decode(), in all
  uint64_t fault_at_ = 0;
  uint64_t invalid_count_ = 0;
};

}  // namespace thinpipe
