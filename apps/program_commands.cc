// About the program itself: completion scripts and the manual page, both printed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/result.h"
#include "command_tree.h"
#include "commands.h"
#include "completion.h"
#include "man_page.h"

namespace thinpipe {
namespace {

// `keys` and `runs` are what the scripts themselves ask for.
std::string completion(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_completion(describe(app));
  if (shell == "zsh") return zsh_completion(describe(app));
  if (shell == "keys") return completion_keys();
  if (shell == "runs") return completion_runs();
  throw UserError(fmt::format("completion {}: there are scripts for bash and zsh", shell));
}

}  // namespace

void add_program_commands(CLI::App& app) {
  app.set_version_flag("--version", "thinpipe " THINPIPE_VERSION, "show the version and end");
  auto shell = std::make_shared<std::string>();
  auto* completion_command = app.add_subcommand("completion", "print a script that lets your shell complete thinpipe");
  completion_command->add_option("shell", *shell, "bash or zsh")->type_name("bash|zsh")->required();
  completion_command->footer(
      "Examples:\n  source <(thinpipe completion bash)                     for this window; in ~/.bashrc for all\n"
      "  source <(thinpipe completion zsh)                      likewise, in ~/.zshrc after compinit\n"
      "  thinpipe completion zsh > ~/.zfunc/_thinpipe           where ~/.zfunc is in $fpath\n"
      "Then the tab key completes commands, options, config keys behind --set, and the names of runs.");
  completion_command->callback([&app, shell] { fmt::print("{}", completion(app, *shell)); });

  auto* man = app.add_subcommand("man", "print the manual page");
  man->footer(
      "Examples:\n  thinpipe man | man -l -                                read it\n"
      "  thinpipe man > thinpipe.1                              keep it\n"
      "It is made from the commands as they are in this program. Where thinpipe is installed: man thinpipe.");
  man->callback([&app] { fmt::print("{}", man_page(describe(app), THINPIPE_VERSION, THINPIPE_DATE)); });
}

}  // namespace thinpipe
