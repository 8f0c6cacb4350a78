// docs/security.md promises a test for every row. This checks that the tests exist.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "base/files.h"

namespace thinpipe {
namespace {

// "Suite.Name" of every test below tests/.
std::set<std::string> all_tests() {
  const std::regex macro(R"(TEST(?:_F|_P)?\((\w+),\s*(\w+)\))");
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("tests")) {
    if (entry.path().extension() != ".cc") continue;
    const auto text = read_file(entry.path()).take();
    for (std::sregex_iterator one(text.begin(), text.end(), macro), end; one != end; ++one) {
      found.insert((*one)[1].str() + "." + (*one)[2].str());
    }
  }
  return found;
}

TEST(SecurityPage, EveryPromise_NamesTestsThatExist) {
  const auto tests = all_tests();
  ASSERT_GT(tests.size(), 100U);
  std::istringstream page(read_file("docs/security.md").take());
  const std::regex name(R"(`(\w+\.\w+)`)");
  bool promises = false;
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) promises = line == "## Prevented" || line == "## Detected";
    if (!promises || !line.starts_with("| ") || line.starts_with("| who ")) continue;
    ++rows;
    const auto cell = line.substr(line.rfind('|', line.size() - 2));
    int named = 0;
    for (std::sregex_iterator one(cell.begin(), cell.end(), name), end; one != end; ++one, ++named) {
      EXPECT_TRUE(tests.contains((*one)[1].str())) << (*one)[1] << " does not exist";
    }
    EXPECT_GT(named, 0) << "no test in: " << line;
  }
  EXPECT_GT(rows, 20);
}

}  // namespace
}  // namespace thinpipe
