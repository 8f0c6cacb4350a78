// A small trained run for the tests of eval, generate and export, with the real program on real files.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "apps/program.h"

namespace thinpipe::test {

using Json = nlohmann::json;

// The last line of a command's output.
inline Json json_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string line, last;
  while (std::getline(lines, line)) {
    if (!line.empty()) last = line;
  }
  return Json::parse(last, nullptr, false);
}

class TrainedModels : public testing::Test {
 protected:
  void SetUp() override {
    if (!kTokenises) GTEST_SKIP() << "no tokenizer beside libtorch in a sanitizer's build";
    write_tiny_run(program_);
    write_file(program_ / "text.txt", english(120, 7));
  }

  // A run of a few steps in the folder `run`.
  void train(const Arguments& settings, const std::string& run = "run") {
    Arguments all{"model.mode=subspace", "train.steps=20", "train.seq_len=32"};
    all.insert(all.end(), settings.begin(), settings.end());
    const auto outcome = program_.run(tiny_run(all, {"--run-dir", run}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }

  Json eval(Arguments arguments) {
    arguments.insert(arguments.begin(), "eval");
    arguments.push_back("--json");
    return json_of(program_.run(arguments));
  }

  Json generate(Arguments arguments) {
    arguments.insert(arguments.begin(), "generate");
    arguments.push_back("--json");
    return json_of(program_.run(arguments));
  }

  void must(const Arguments& arguments) {
    const auto outcome = program_.run(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }

  Program program_;
};

}  // namespace thinpipe::test
