// thinpipe lab NAME and thinpipe bench NAME: experiments and benchmarks that print what they measured.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/units.h"
#include "commands.h"
#include "lab/lab.h"

namespace thinpipe {

void add_lab_command(CLI::App& app) {
  auto* lab = app.add_subcommand("lab", "experiments that check the method");
  lab->require_subcommand(1);
  auto json = std::make_shared<bool>(false);
  auto* exactness =
      lab->add_subcommand("exactness", "a cut model against an uncut reference, and what coarser packs cost");
  exactness->add_flag("--json", *json, "one JSON object on the last line");
  exactness->callback([json] { lab_exactness(*json); });
  auto* optimizer = lab->add_subcommand("optimizer", "does the optimiser keep the weights in the subspace?");
  optimizer->add_flag("--json", *json, "one JSON object on the last line");
  optimizer->callback([json] { lab_optimizer(*json); });
  auto minutes = std::make_shared<double>(3.0);
  auto* defaults =
      lab->add_subcommand("default", "train the default model and its dense counterpart for the same time");
  defaults->add_option("--minutes", *minutes, "each")->check(CLI::Range(0.05, 10000.0))->capture_default_str();
  defaults->add_flag("--json", *json, "one JSON object on the last line");
  defaults->callback([json, minutes] { lab_default(*minutes, *json); });
}

void add_bench_command(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "benchmarks; each prints ratios measured within one run");
  bench->require_subcommand(1);
  auto json = std::make_shared<bool>(false);
  auto options = std::make_shared<BenchTableOptions>();
  auto* table =
      bench->add_subcommand("table", "a subspace stage by the anchor table, by the direct form, and a dense stage");
  table->add_flag("--json", *json, "one JSON object on the last line");
  table->add_option("--rounds", options->rounds, "alternating measurements")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  table->add_option("--threads", options->threads, "compute threads")->check(CLI::Range(1, 256))->capture_default_str();
  table->callback([options, json] { bench_table(*options, *json); });
  auto wan_options = std::make_shared<BenchWanOptions>();
  auto* wan = bench->add_subcommand("wan", "dense and subspace pipelines over links as slow as a home connection");
  wan->add_flag("--json", *json, "one JSON object on the last line");
  const auto size = [&](const char* name, int64_t& value, const char* help) {
    wan->add_option(name, value, help)->check(CLI::Range(1, 65536))->capture_default_str();
  };
  size("--d", wan_options->d, "width");
  size("--rank", wan_options->rank, "of the subspace");
  size("--sequences", wan_options->sequences, "in a microbatch, of 256 tokens");
  size("--microbatches", wan_options->microbatches, "in a step");
  size("--steps", wan_options->steps, "measured in each run");
  wan->callback([wan_options, json] {
    wan_options->program = std::filesystem::read_symlink("/proc/self/exe").string();
    bench_wan(*wan_options, *json);
  });
  auto* join = bench->add_subcommand("join", "from `thinpipe join` to the first step, on this machine");
  join->add_flag("--json", *json, "one JSON object on the last line");
  join->callback([json] { bench_join(std::filesystem::read_symlink("/proc/self/exe").string(), *json); });
  auto data_size = std::make_shared<std::string>("1GB");
  auto* data = bench->add_subcommand("data", "prepare made-up text in a process of its own: rate and peak memory");
  data->add_option("--size", *data_size, "of the text")->capture_default_str();
  data->add_flag("--json", *json, "one JSON object on the last line");
  data->footer("Examples:\n  thinpipe bench data\n  thinpipe bench data --size 100MB --json");
  data->callback([data_size, json] {
    const auto bytes = parse_size(*data_size);
    if (!bytes) throw UserError("--size: " + bytes.error().message);
    if (bytes.value() < 1'000'000) throw UserError(fmt::format("--size {}: give at least 1MB", *data_size));
    bench_data({std::filesystem::read_symlink("/proc/self/exe").string(), bytes.value()}, *json);
  });
}

}  // namespace thinpipe
