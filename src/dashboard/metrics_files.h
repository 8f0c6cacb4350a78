// A run's curves for other programs: metrics.jsonl and timing.jsonl as a table, or as an event file for TensorBoard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace thinpipe {

// A line per step, below a line with the names of the columns. A value that a step does not have is empty; one that is
// not finite is nan. Throws UserError if the run has made no step.
std::string metrics_csv(const std::filesystem::path& run_folder);

// Records (TFRecord) of Event messages with scalars, as TensorBoard reads them. Throws UserError if the run has made no
// step.
std::string metrics_events(const std::filesystem::path& run_folder);

// CRC-32C, Castagnoli's, as RFC 3720 has it; and how TFRecord masks it.
uint32_t crc32c(std::string_view bytes);
uint32_t masked(uint32_t crc);

}  // namespace thinpipe
