#include "base/log.h"

#include <gtest/gtest.h>

#include "support/user_error.h"

namespace thinpipe {
namespace {

TEST(LogLevel, RefusesAnUnknownOneAndNamesTheKnown) {
  EXPECT_EQ(test::user_error([] { set_log_level("loud"); }),
            "log level 'loud' is not one of debug, info, warn, error");
}

TEST(LogLevel, KeepsLowerLinesOffStandardError) {
  init_log();
  set_log_level("warn");
  testing::internal::CaptureStderr();
  log_info("quiet {}", 1);
  log_warn("heard {}", 2);
  spdlog::default_logger()->flush();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("quiet"), std::string::npos) << said;
  EXPECT_NE(said.find("heard 2"), std::string::npos) << said;
  set_log_level("info");
}

}  // namespace
}  // namespace thinpipe
