#include "text/kjv.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "support/scratch.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

// Sets an environment variable for one test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { before_.empty() ? ::unsetenv(name_) : ::setenv(name_, before_.c_str(), 1); }

 private:
  const char* name_;
  std::string before_;
};

TEST(Kjv, RefusesAListingThatIsNotTheWholeBook) {
  EXPECT_EQ(kjv_text_from_listing("").error().message,
            "the listing of 'bible' has 0 verses in 0 chapters; the whole has 31102 in 1189");
  EXPECT_EQ(kjv_text_from_listing("Ge1:1 In the\nGe1:2 And\nGe2:1 Thus\n").error().message,
            "the listing of 'bible' has 3 verses in 2 chapters; the whole has 31102 in 1189");
  for (const char* bad : {"usage: bible", "Ge1:1", "Ge1:x a", ":1 a", "Ge:1 a", "\n"}) {
    EXPECT_TRUE(kjv_text_from_listing(bad).error().message.starts_with(
        "the listing of 'bible' has a line that is not a verse: '"))
        << bad;
  }
}

TEST(Kjv, SaysWhatToInstallWhenTheProgramIsMissing) {
  const test::ScratchFolder folder;
  const Environment data("THINPIPE_DATA_DIR", folder.path());
  const Environment path("PATH", folder.path());
  EXPECT_EQ(test::user_error([] { kjv_file(); }),
            "data.corpus = \"kjv\" needs the program 'bible': install Debian's package bible-kjv, or set data.corpus "
            "to a text file");
  EXPECT_EQ(folder.file_count(), 0U);
}

TEST(Kjv, RefusesAProgramThatFailsOrPrintsSomethingElse) {
  const test::ScratchFolder folder;
  const Environment data("THINPIPE_DATA_DIR", folder.path());
  const Environment path("PATH", folder.path());
  const auto install = [&](const std::string& script) {
    test::write_file(folder / "bible", "#!/bin/sh\n" + script);
    std::filesystem::permissions(folder / "bible", std::filesystem::perms::owner_all);
  };
  install("echo 'Ge1:1 In the beginning'\nexit 3\n");
  EXPECT_TRUE(test::user_error([] {
                kjv_file();
              }).starts_with("data.corpus = \"kjv\": the program 'bible' failed (wait status "));
  install("echo 'Ge1:1 In the beginning'\n");
  EXPECT_EQ(test::user_error([] { kjv_file(); }),
            "data.corpus = \"kjv\": the listing of 'bible' has 1 verses in 1 chapters; the whole has 31102 in 1189");
}

TEST(Kjv, HasADocumentPerChapterAndALinePerVerse) {
  if (std::system("command -v bible >/dev/null 2>&1") != 0) GTEST_SKIP() << "the program bible is not installed";
  const test::ScratchFolder folder;
  const Environment data("THINPIPE_DATA_DIR", folder.path());
  const auto chapters = test::documents(Corpus::open("kjv"));
  ASSERT_EQ(chapters.size(), kKjvChapters);
  size_t verses = 0;
  for (const auto& chapter : chapters) verses += static_cast<size_t>(std::count(chapter.begin(), chapter.end(), '\n'));
  EXPECT_EQ(verses, kKjvVerses);
  EXPECT_TRUE(
      chapters.front().starts_with("In the beginning God created the heaven and the earth.\nAnd the earth was"));
  EXPECT_TRUE(chapters.back().ends_with("The grace of our Lord Jesus Christ be with you all. Amen.\n"));

  // The second call does not run the program; a damaged copy is made again.
  const std::string text = read_file(folder / "corpora/kjv.txt").take();
  {
    const Environment path("PATH", folder.path());
    EXPECT_EQ(kjv_file(), folder / "corpora/kjv.txt");
  }
  test::write_file(folder / "corpora/kjv.txt", std::string_view(text).substr(0, 1000));
  EXPECT_EQ(read_file(kjv_file()).take(), text);
}

}  // namespace
}  // namespace thinpipe
