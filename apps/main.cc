// thinpipe: one program. Exit codes: 0 done, also serve and join that end on one ctrl-C; 1 a fault of ours; 2 refused
// input or a failed run, said in one line; 130 stopped: train and data prepare by ctrl-C, serve and join by a second.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/line.h"
#include "base/log.h"
#include "base/result.h"
#include "commands.h"
#include "help.h"

namespace {

// Says it in one line, whatever the message holds: libtorch puts a stack behind its own, a path may have line ends in
// it.
void complain(std::string_view message) {
  for (const std::string_view stack : {"\nException raised from", "\nframe #"}) {
    message = message.substr(0, message.find(stack));
  }
  // Not fmt::print, which throws where standard error cannot be written: there is nobody left to tell.
  const std::string line = fmt::format("thinpipe: {}\n", thinpipe::escaped(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// What was printed may still be in memory, or was lost on the way: the code to end with instead of `code`. reason: the
// errno of a write that failed before, if it is known.
int ended(int code, int reason = 0) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (code != 0 || (flushed && std::ferror(stdout) == 0)) return code;
  if (errno != 0) reason = errno;
  complain(fmt::format("cannot write standard output: {}", reason == 0 ? "part of it is lost" : std::strerror(reason)));
  return 2;
}

// CLI11 asks for a command without saying what it got instead.
std::string usage_fault(const CLI::App& app, const CLI::ParseError& error) {
  const auto words = app.remaining();
  if (!app.get_subcommands().empty() || words.empty()) return fmt::format("{}; see thinpipe --help", error.what());
  if (words[0].starts_with('-')) return fmt::format("unknown option {}; see thinpipe --help", words[0]);
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    names.push_back(command->get_name());
  }
  const auto near = thinpipe::nearest(words[0], names);
  if (!near.empty()) return fmt::format("unknown command {}: did you mean {}?", words[0], near);
  return fmt::format("unknown command {}: the commands are {}", words[0], fmt::join(names, ", "));
}

// An empty value is a script's unset variable, not a wish for the default. Only a prompt may be empty: the text then
// begins with nothing.
void refuse_empty_values(CLI::App& app) {
  for (auto* option : app.get_options()) {
    if (option->get_items_expected_max() == 0 || option->check_name("--prompt")) continue;
    option->check([](const std::string& value) {
      return value.empty() ? std::string("is empty: give a value, or leave it out") : std::string();
    });
  }
  for (auto* command : app.get_subcommands([](CLI::App*) { return true; })) refuse_empty_values(*command);
}

// fmt::print throws one where what stands behind standard output or standard error takes no more.
bool is_unwritten_output(const std::exception& error) {
  return dynamic_cast<const std::system_error*>(&error) != nullptr &&
         (std::ferror(stdout) != 0 || std::ferror(stderr) != 0);
}

}  // namespace

int main(int argc, char** argv) {
  // For the processes of a run, which are children of this one: a thread that waits should not spin away the core that
  // a neighbour needs. This process has read it already.
  ::setenv("GOMP_SPINCOUNT", "1000", 0);
  thinpipe::init_log();
  CLI::App app("Trains transformer language models over ordinary internet links.", "thinpipe");
  app.require_subcommand(1);
  std::string log_level = "info";
  app.add_option("--log-level", log_level, "what to say on standard error")
      ->type_name("debug|info|warn|error")
      ->capture_default_str();
  app.parse_complete_callback([&] { thinpipe::set_log_level(log_level); });
  thinpipe::add_train_command(app);
  thinpipe::add_serve_command(app);
  thinpipe::add_work_command(app);
  thinpipe::add_run_commands(app);
  thinpipe::add_join_commands(app);
  thinpipe::add_eval_command(app);
  thinpipe::add_generate_command(app);
  thinpipe::add_export_command(app);
  thinpipe::add_import_command(app);
  thinpipe::add_data_commands(app);
  thinpipe::add_tokenizer_commands(app);
  thinpipe::add_lab_command(app);
  thinpipe::add_bench_command(app);
  thinpipe::add_program_commands(app);
  thinpipe::add_help(app);
  refuse_empty_values(app);
  try {
    app.parse(argc, argv);
    return ended(0);
  } catch (const thinpipe::ExitWith& end) {
    return ended(end.code);
  } catch (const CLI::Success& asked) {  // --help or --version
    std::ostringstream text;
    const int code = app.exit(asked, text);
    errno = 0;
    std::fputs(text.str().c_str(), stdout);
    return ended(code, errno);
  } catch (const CLI::ParseError& error) {
    complain(usage_fault(app, error));
    return 2;
  } catch (const thinpipe::UserError& error) {
    complain(error.what());
    return 2;
  } catch (const std::exception& error) {
    if (is_unwritten_output(error)) {
      ended(0, dynamic_cast<const std::system_error&>(error).code().value());
      return 2;
    }
    if (thinpipe::is_out_of_memory(error)) {
      complain("not enough memory for this run: lower model.d, model.blocks, train.microbatch or train.seq_len");
      return 2;
    }
    complain(fmt::format("internal fault: {}", error.what()));
    return 1;
  }
}
