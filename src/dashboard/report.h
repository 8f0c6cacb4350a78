// A run in one file to keep or to send: a page without scripts, or a trace for Perfetto.
#pragma once

#include <filesystem>
#include <string>

namespace thinpipe {

// HTML with everything inside: what was trained, its curves as SVG, bytes, a sample of its text, where the time went,
// events, config. Throws
// UserError if the folder holds no run.
std::string run_report(const std::filesystem::path& run_folder);

// Trace events (JSON) as Perfetto and chrome://tracing read them: a row per stage, a slice per step, and in traced
// steps a slice per pass. Throws UserError if no step was timed.
std::string run_trace(const std::filesystem::path& run_folder);

}  // namespace thinpipe
