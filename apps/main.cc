// thinpipe: one program. Exit codes: 0 done; 2 something the person can mend, said in one line; 1 a fault of ours.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "commands.h"

int main(int argc, char** argv) {
  thinpipe::init_log();
  CLI::App app("Trains transformer language models over ordinary internet links.", "thinpipe");
  app.require_subcommand(1);
  std::string log_level = "info";
  app.add_option("--log-level", log_level, "debug, info, warn or error")->capture_default_str();
  app.parse_complete_callback([&] { thinpipe::set_log_level(log_level); });
  thinpipe::add_train_command(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "thinpipe: {}; see thinpipe --help\n", error.what());
    return 2;
  } catch (const thinpipe::UserError& error) {
    fmt::print(stderr, "thinpipe: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "thinpipe: internal fault: {}\n", error.what());
    return 1;
  }
}
