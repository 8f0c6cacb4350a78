// Reads and writes the units that people use in configs and arguments: "80mbit", "25ms", "4KiB".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace thinpipe {

// Bits per second: bit, kbit, mbit, gbit (powers of 1000), case ignored; "unlimited" is 0.
Result<uint64_t> parse_rate(std::string_view text);
// ns, us, ms, s, min, h, d; a bare 0 is allowed.
Result<Duration> parse_duration(std::string_view text);
// Bytes: B, KB, MB, GB (powers of 1000), KiB, MiB, GiB (powers of 1024); a bare number is bytes.
Result<uint64_t> parse_size(std::string_view text);

std::string format_rate(uint64_t bits_per_second);
std::string format_duration(Duration duration);
std::string format_size(uint64_t bytes);

}  // namespace thinpipe
