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
  lab->footer(
      "Examples:\n  thinpipe lab exactness                                 does a cut change anything?\n"
      "  thinpipe lab default --minutes 3                       what does the subspace cost in loss?\n"
      "Each trains or computes on this machine and prints what it measured; --json adds it for programs.");
  auto json = std::make_shared<bool>(false);
  auto* exactness =
      lab->add_subcommand("exactness", "a cut model against an uncut reference, and what coarser packs cost");
  exactness->add_flag("--json", *json, "one JSON object on the last line");
  exactness->footer(
      "Examples:\n  thinpipe lab exactness\n  thinpipe lab exactness --json | tail -n 1\n"
      "It compares the loss and every gradient of cut models with an uncut one, in float64 and with each pack.");
  exactness->callback([json] { lab_exactness(*json); });
  auto* optimizer = lab->add_subcommand("optimizer", "does the optimiser keep the weights in the subspace?");
  optimizer->add_flag("--json", *json, "one JSON object on the last line");
  optimizer->footer(
      "Examples:\n  thinpipe lab optimizer\n  thinpipe lab optimizer --json | tail -n 1\n"
      "It trains with row-wise and with plain AdamW and prints what part of the weights left the subspace.");
  optimizer->callback([json] { lab_optimizer(*json); });
  auto minutes = std::make_shared<double>(3.0);
  auto* defaults =
      lab->add_subcommand("default", "train the default model and its dense counterpart for the same time");
  defaults->add_option("--minutes", *minutes, "minutes of training per model")
      ->check(CLI::Range(0.05, 10000.0))
      ->capture_default_str();
  defaults->add_flag("--json", *json, "one JSON object on the last line");
  defaults->footer(
      "Examples:\n  thinpipe lab default                                   three minutes each\n"
      "  thinpipe lab default --minutes 30 --json\n"
      "It trains both on this machine, one after the other, and prints their validation losses and bytes per token.");
  defaults->callback([json, minutes] { lab_default(*minutes, *json); });
}

void add_bench_command(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "benchmarks; each prints ratios measured within one run");
  bench->require_subcommand(1);
  bench->footer(
      "Examples:\n  thinpipe bench table                                   how fast is a stage?\n"
      "  thinpipe bench wan                                     what do slow links leave of the speed?\n"
      "Each runs on this machine alone and prints ratios of what it measured side by side.");
  auto json = std::make_shared<bool>(false);
  auto options = std::make_shared<BenchTableOptions>();
  auto* table =
      bench->add_subcommand("table", "a subspace stage by the anchor table, by the direct form, and a dense stage");
  table->add_flag("--json", *json, "one JSON object on the last line");
  table->add_option("--rounds", options->rounds, "number of measurements, taken in turn")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  table->add_option("--threads", options->threads, "compute threads")->check(CLI::Range(1, 256))->capture_default_str();
  table->footer(
      "Examples:\n  thinpipe bench table\n  thinpipe bench table --threads 4 --rounds 5\n"
      "It measures the three in turns and prints how much faster each is than the next.");
  table->callback([options, json] { bench_table(*options, *json); });
  auto wan_options = std::make_shared<BenchWanOptions>();
  auto* wan = bench->add_subcommand("wan", "dense and subspace pipelines over links as slow as a home connection");
  wan->add_flag("--json", *json, "one JSON object on the last line");
  const auto size = [&](const char* name, int64_t& value, const char* help) {
    wan->add_option(name, value, help)->check(CLI::Range(1, 65536))->capture_default_str();
  };
  size("--d", wan_options->d, "width of the residual stream");
  size("--rank", wan_options->rank, "dimensions of the subspace");
  size("--sequences", wan_options->sequences, "sequences of 256 tokens per microbatch");
  size("--microbatches", wan_options->microbatches, "microbatches per step");
  size("--steps", wan_options->steps, "measured steps per run");
  wan->footer(
      "Examples:\n  thinpipe bench wan\n  thinpipe bench wan --d 512 --rank 16 --steps 2\n"
      "It trains pipelines of two processes over slowed-down links and prints their tokens per second.");
  wan->callback([wan_options, json] {
    wan_options->program = std::filesystem::read_symlink("/proc/self/exe").string();
    bench_wan(*wan_options, *json);
  });
  auto* join = bench->add_subcommand("join", "from `thinpipe join` to the first step, on this machine");
  join->add_flag("--json", *json, "one JSON object on the last line");
  join->footer(
      "Examples:\n  thinpipe bench join\n  thinpipe bench join --json | tail -n 1\n"
      "It serves a run on this machine, lets workers join, and prints the seconds until each took part in a step.");
  join->callback([json] { bench_join(std::filesystem::read_symlink("/proc/self/exe").string(), *json); });
  auto data_size = std::make_shared<std::string>("1GB");
  auto* data = bench->add_subcommand("data", "prepare made-up text in a process of its own: rate and peak memory");
  data->add_option("--size", *data_size, "size of the text")->capture_default_str();
  data->add_flag("--json", *json, "one JSON object on the last line");
  data->footer(
      "Examples:\n  thinpipe bench data\n  thinpipe bench data --size 100MB --json\n"
      "It prepares made-up text of that size and prints how fast that went and the most memory it took.");
  data->callback([data_size, json] {
    const auto bytes = parse_size(*data_size);
    if (!bytes) throw UserError("--size: " + bytes.error().message);
    if (bytes.value() < 1'000'000) throw UserError(fmt::format("--size {}: give at least 1MB", *data_size));
    bench_data({std::filesystem::read_symlink("/proc/self/exe").string(), bytes.value()}, *json);
  });
}

}  // namespace thinpipe
