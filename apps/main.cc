// The main() of both programs (docs/design/0010-late-libtorch.md): the small one, which people call, and the full one,
// to which it hands over commands that need libtorch. Exit codes: 0 done, also serve and join that end on one ctrl-C; 1
// a fault of the program; 2 refused input or a failed run, with one line that says why; 130 stopped: train and data
// prepare by ctrl-C, serve and join by a second one.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

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

#include "arguments.h"
#include "base/line.h"
#include "base/log.h"
#include "base/program_files.h"
#include "base/result.h"
#include "base/say.h"
#include "commands.h"
#include "complete.h"
#include "help.h"

namespace thinpipe {
namespace {

// Prints one line, whatever the message holds: libtorch adds a stack trace to its own, and a path may have line ends.
void complain(std::string_view message) {
  for (const std::string_view stack : {"\nException raised from", "\nframe #"}) {
    message = message.substr(0, message.find(stack));
  }
  // Not fmt::print, which throws if standard error cannot be written: there is nobody left to tell.
  const std::string line = folded(fmt::format("thinpipe: {}\n", escaped(message)), room_of(stderr));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// The exit code instead of `code`: output may still be in memory, or was lost on the way. reason: the errno of a write
// that failed before, if it is known.
int ended(int code, int reason = 0) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (code != 0 || (flushed && std::ferror(stdout) == 0)) return code;
  if (errno != 0) reason = errno;
  complain(fmt::format("cannot write standard output: {}", reason == 0 ? "part of it is lost" : std::strerror(reason)));
  return 2;
}

// CLI11 complains about missing words before it looks at those that are too many. These are usually the mistake.
std::string usage_fault(const Command& program, const CLI::ParseError& error) {
  std::string path = program.get_name();
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
  }
  const auto words = command->remaining();
  const bool needs_command = command->get_require_subcommand_min() > 0 && error.get_name() == "RequiredError";
  if (words.empty()) {
    return fmt::format("{}; see {} --help", needs_command ? "a command is missing" : error.what(), path);
  }
  std::vector<std::string> names;
  const bool is_option = words[0].starts_with('-');
  for (const auto* option : command->get_options()) {
    if (is_option && !option->get_group().empty() && !option->get_positional()) names.push_back(option->get_name());
  }
  for (const auto* one : command->get_subcommands([](const CLI::App* any) { return !any->get_group().empty(); })) {
    if (!is_option) names.push_back(one->get_name());
  }
  const auto what = is_option ? "unknown option" : names.empty() ? "unexpected argument" : "unknown command";
  const auto word = is_option ? words[0].substr(0, words[0].find('=')) : words[0];
  if (const auto near = nearest(word, names); !near.empty()) {
    return fmt::format("{} {}: did you mean {}?", what, words[0], near);
  }
  if (is_option || names.empty()) return fmt::format("{} {}; see {} --help", what, words[0], path);
  return fmt::format("{} {}: the commands are {}", what, words[0], fmt::join(names, ", "));
}

// fmt::print throws one if standard output or standard error takes no more.
bool is_unwritten_output(const std::exception& error) {
  return dynamic_cast<const std::system_error*>(&error) != nullptr &&
         (std::ferror(stdout) != 0 || std::ferror(stderr) != 0);
}

// Replaces this process by the full program, which parses the same arguments again. Signals, parent and standard
// streams stay as they are.
[[noreturn]] void hand_over(char** argv) {
  const auto program = program_file("thinpipe-full", "the program with libtorch", THINPIPE_FULL_BUILT);
  ::execv(program.c_str(), argv);
  throw UserError(fmt::format("cannot start {}: {}", program.string(), std::strerror(errno)));
}

// Settings of libraries that read them when they are loaded: they take effect in the full program and in the processes
// of a run. What the user has set stays.
void set_library_environment() {
  // A thread that waits should not spin away the core that a neighbour needs.
  ::setenv("GOMP_SPINCOUNT", "1000", 0);
  // Large pages for large tensors, where the kernel gives them only when asked.
  ::setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0);
#ifdef __x86_64__
  // Debian 12's OpenBLAS takes Intel processors that are newer than itself for a Pentium 4, which makes a dense
  // stage 3.6 times as slow (OpenMathLib/OpenBLAS issue 4267). These are the kernels that it chooses for the models it
  // knows.
  if (!__builtin_cpu_is("intel")) return;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {
    ::setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    ::setenv("OPENBLAS_CORETYPE", "Haswell", 0);
  }
#endif
}

int parse_and_run(Command& program, int argc, char** argv) {
  try {
    program.parse(argc, argv);
    return ended(0);
  } catch (const NeedsTorch&) {
    hand_over(argv);
  } catch (const ExitWith& end) {
    return ended(end.code);
  } catch (const CLI::Success& asked) {  // --help or --version
    std::ostringstream text;
    const int code = program.exit(asked, text);
    errno = 0;
    std::fputs(text.str().c_str(), stdout);
    return ended(code, errno);
  } catch (const CLI::ParseError& error) {
    complain(usage_fault(program, error));
    return 2;
  }
}

int run(int argc, char** argv) {
  set_library_environment();
  init_log();
  try {
    Command program("thinpipe", "Train transformer language models over ordinary internet links");
    std::string log_level = "info";
    program.value("--log-level", log_level, one_of({"debug", "info", "warn", "error"}),
                  "least important messages to print on standard error");
    program.parse_complete_callback([&] { set_log_level(log_level); });
    add_commands(program);
    if (argc > 1 && argv[1] == std::string_view("__complete")) {
      fmt::print("{}", complete(program, std::vector<std::string>(argv + 2, argv + argc)));
      return ended(0);
    }
    if (argc == 1) {
      fmt::print("{}", first_steps());
      return ended(0);
    }
    return parse_and_run(program, argc, argv);
  } catch (const UserError& error) {
    complain(error.what());
    return 2;
  } catch (const std::exception& error) {
    if (is_unwritten_output(error)) {
      ended(0, dynamic_cast<const std::system_error&>(error).code().value());
      return 2;
    }
    if (is_out_of_memory(error)) {
      complain("not enough memory for this run: lower model.d, model.blocks, train.microbatch or train.seq_len");
      return 2;
    }
    complain(fmt::format("internal fault: {}", error.what()));
    return 1;
  }
}

}  // namespace
}  // namespace thinpipe

int main(int argc, char** argv) {
  const int code = thinpipe::run(argc, argv);
  // Everything is written and closed. The destructors of the libraries' static objects are left out: threads of gRPC
  // and libtorch may still use them.
  std::fflush(nullptr);
  ::_exit(code);
}
