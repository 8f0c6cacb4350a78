#include "config/link_settings.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"

namespace thinpipe {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.push_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Reads one key for every cut; set(cut's direction, parsed value).
template <class Parse, class Set>
void read(std::vector<CutSettings>& cuts, std::string_view key, const std::string& text, Parse parse, Set set) {
  const auto values = split(text, ',');
  if (values.size() != 1 && values.size() != cuts.size()) {
    throw UserError(fmt::format("link.{} = \"{}\": has {} values, needs one for all cuts or one for each of the {}",
                                key, text, values.size(), cuts.size()));
  }
  for (size_t cut = 0; cut < cuts.size(); ++cut) {
    const auto directions = split(values[values.size() == 1 ? 0 : cut], '/');
    if (directions.size() > 2) {
      throw UserError(fmt::format("link.{} = \"{}\": needs one value, or forward/backward", key, text));
    }
    const auto value_of = [&](size_t direction) {
      auto value = parse(directions[direction]);
      if (!value) throw UserError(fmt::format("link.{} = \"{}\": {}", key, text, value.error().message));
      return value.value();
    };
    set(cuts[cut].forward, value_of(0));
    set(cuts[cut].backward, value_of(directions.size() - 1));
  }
}

}  // namespace

std::vector<CutSettings> link_settings(const RunConfig& config) {
  // A run in one stage has no cut, but a fault in its keys is still a fault: read them for one.
  const auto count = static_cast<size_t>(config.pipeline.stages - 1);
  std::vector<CutSettings> cuts(count == 0 ? 1 : count);
  const auto& link = config.link;
  read(cuts, "rate", link.rate, parse_rate, [](auto& direction, uint64_t rate) { direction.rate_bits_per_s = rate; });
  read(cuts, "delay", link.delay, parse_duration, [](auto& direction, Duration delay) { direction.delay = delay; });
  read(cuts, "jitter", link.jitter, parse_duration, [](auto& direction, Duration time) { direction.jitter = time; });
  cuts.resize(count);
  return cuts;
}

}  // namespace thinpipe
