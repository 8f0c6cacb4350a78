#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>

#include "base/line.h"
#include "base/result.h"
#include "base/say.h"

namespace thinpipe {
namespace {

// A log line must not be glued to the progress line.
class AboveLiveLine : public spdlog::sinks::stderr_color_sink_mt {
 public:
  void log(const spdlog::details::log_msg& message) override {
    // "12:34:56.789 info " stands before it.
    const size_t before = 14 + spdlog::level::to_string_view(message.level).size();
    const auto text = folded({message.payload.data(), message.payload.size()}, room_of(stderr), before);
    auto shown = message;
    shown.payload = text;
    above_live_line([&] { spdlog::sinks::stderr_color_sink_mt::log(shown); });
  }
};

}  // namespace

void init_log() {
  auto logger = std::make_shared<spdlog::logger>("thinpipe", std::make_shared<AboveLiveLine>());
  logger->set_pattern("%H:%M:%S.%e %^%l%$ %v");
  spdlog::set_default_logger(std::move(logger));
}

void set_log_level(std::string_view level) {
  if (level == "debug") {
    spdlog::set_level(spdlog::level::debug);
  } else if (level == "info") {
    spdlog::set_level(spdlog::level::info);
  } else if (level == "warn") {
    spdlog::set_level(spdlog::level::warn);
  } else if (level == "error") {
    spdlog::set_level(spdlog::level::err);
  } else {
    throw UserError(fmt::format("log level '{}' is not one of debug, info, warn, error", level));
  }
}

}  // namespace thinpipe
