// Prepares the corpus of a config: prepare_program CONFIG DATA_DIRECTORY. A sanitizer's build needs it for its tests:
// the tokenizer module cannot be loaded beside libtorch or gRPC there (text/tokenizer.cc). The programs under test then
// find the corpus in their cache.
#include <cstdio>
#include <exception>

#include "config/config_file.h"
#include "text/prepare.h"

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw thinpipe::UserError("usage: prepare_program CONFIG DATA_DIRECTORY");
    thinpipe::prepare_corpus(thinpipe::load_config(argv[1]).data, argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prepare_program: %s\n", error.what());
    return 1;
  }
}
