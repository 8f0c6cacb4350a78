// Results of experiments that are kept for the next call.
#include "lab/training.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/files.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

TEST(KeptResults, AreRecalled_AndMadeAgainAfterDamage) {
  const test::ScratchFolder scratch;
  ::setenv("THINPIPE_DATA_DIR", scratch.path().c_str(), 1);
  int made = 0;
  const auto ask = [&] {
    return kept_or_made("group", "key", [&]() -> nlohmann::ordered_json { return {{"losses", {++made, 2}}}; });
  };
  const auto first = ask();
  EXPECT_EQ(ask(), first);
  EXPECT_EQ(made, 1);
  const auto file = std::filesystem::directory_iterator(scratch.path() / "lab/group")->path();
  const auto text = read_file(file).take();
  std::vector<std::string> damaged{"", text.substr(0, text.size() / 2), "[]", "{\"value\": 1}"};
  for (size_t i = 0; i < text.size(); ++i) {
    damaged.push_back(text);
    damaged.back()[i] = text[i] == '1' ? '3' : '1';
  }
  for (const auto& kept : damaged) {
    const int before = made;
    write_file_atomically(file, kept).take();
    ask();
    EXPECT_EQ(made, before + 1) << kept;
  }
  ::unsetenv("THINPIPE_DATA_DIR");
}

}  // namespace
}  // namespace thinpipe
