// thinpipe metrics: a run's curves as a table or for TensorBoard, without libtorch.
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "base/files.h"
#include "base/result.h"
#include "base/say.h"
#include "commands.h"
#include "dashboard/metrics_files.h"
#include "run_folders.h"

namespace thinpipe {

void export_metrics(const MetricsArguments& arguments) {
  const bool table = arguments.format == "csv";
  const auto run = find_run(arguments.run).take();
  const auto name = run.filename().string();
  auto out = std::filesystem::path(arguments.out);
  if (out.empty()) out = table ? name + ".csv" : name + ".tfevents";
  if (!table && out.filename().string().find("tfevents") == std::string::npos) {
    throw UserError(
        fmt::format("--out {}: TensorBoard reads only files with tfevents in their names, such as {}.tfevents",
                    out.string(), name));
  }
  write_file_atomically(out, table ? metrics_csv(run) : metrics_events(run)).take();
  say("wrote {}\n", out.string());
}

}  // namespace thinpipe
