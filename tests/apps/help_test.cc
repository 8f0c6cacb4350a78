// Help and completion, which are generated from the commands, and that they do not load libtorch. The lists here are
// read from `thinpipe --help`, so that new commands are tested too.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "apps/program.h"
#include "config/keys.h"

namespace thinpipe {
namespace {

using test::Arguments;
using test::expect_refused;
using test::Outcome;
using test::Program;
using test::write_file;
using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string said(const Program& program, const Arguments& arguments) {
  const auto outcome = program.run(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.out;
}

// Command -> the title of its group.
std::map<std::string, std::string> listed_commands(const std::string& help) {
  std::map<std::string, std::string> commands;
  std::string title;
  const std::regex command("  ([a-z][a-z-]*) +[^ ].*");
  for (const auto& line : lines_of(help)) {
    std::smatch match;
    if (line.ends_with(':')) title = line.substr(0, line.size() - 1);
    if (line.empty()) title.clear();
    if (!title.empty() && title != "First things to try" && title != "Examples" &&
        std::regex_match(line, match, command))
      commands[match[1]] = title;
  }
  return commands;
}

// The part of --help-all about every command, by its path: "lab exactness".
std::map<std::string, Lines> help_by_command(const std::string& all) {
  std::map<std::string, Lines> parts;
  std::string path;
  const std::regex heading("thinpipe ([a-z ]*[a-z])( [^a-z].*)?:");
  for (const auto& line : lines_of(all)) {
    std::smatch match;
    if (std::regex_match(line, match, heading))
      path = match[1];
    else if (!line.empty() && line[0] != ' ')
      path.clear();
    if (!path.empty()) parts[path].push_back(line);
  }
  return parts;
}

TEST(Help, ListsEveryCommandInAGroup) {
  const Program program;
  const auto commands = listed_commands(said(program, {"--help"}));
  EXPECT_GE(commands.size(), 15U);
  EXPECT_EQ(commands.at("train"), "Train on this machine");
  EXPECT_EQ(commands.at("join"), "Train with others");
  for (const auto& [command, group] : commands) EXPECT_NE(group, "Commands") << command << " needs a group";
  EXPECT_FALSE(commands.contains("work")) << "is hidden";
}

TEST(Help, HasExamplesOfEveryCommand) {
  const Program program;
  const auto help = help_by_command(said(program, {"--help-all"}));
  for (const auto& [command, group] : listed_commands(said(program, {"--help"}))) {
    EXPECT_TRUE(help.contains(command)) << command << " in " << group;
  }
  for (const auto& [command, lines] : help) {
    SCOPED_TRACE("thinpipe " + command);
    const auto examples = std::find(lines.begin(), lines.end(), "  Examples:");
    ASSERT_NE(examples, lines.end()) << "needs a footer that begins with Examples:";
    size_t count = 0;
    bool sentence = false;
    for (auto line = examples + 1; line != lines.end(); ++line) {
      if (line->starts_with("    $ ") && line->find("thinpipe") != std::string::npos) ++count;
      if (line->starts_with("  ") && line->size() > 2 && (*line)[2] != ' ') sentence = true;
    }
    EXPECT_TRUE(2 <= count && count <= 4) << count << " examples";
    EXPECT_TRUE(sentence) << "a sentence behind the examples should say what happens";
  }
}

TEST(Help, FitsIntoEightyColumns) {
  const Program program;
  for (const auto& line : lines_of(said(program, {"--help-all"}))) {
    EXPECT_LE(line.size(), 80U) << line;
  }
  for (const auto& line : lines_of(said(program, {"bench", "wan", "--help"}))) EXPECT_LE(line.size(), 80U) << line;
  for (const auto& line : lines_of(said(program, {}))) EXPECT_LE(line.size(), 80U) << line;
}

TEST(Help, Option_ShowsItsLimitsAndItsDefault) {
  const Program program;
  const auto help = std::regex_replace(said(program, {"bench", "wan", "--help"}), std::regex("\n +"), " ");
  EXPECT_NE(help.find("dimensions of the subspace; 1 to 65536; default: 12 "), std::string::npos) << help;
  EXPECT_NE(said(program, {"import", "--help"}).find("--mode dense|subspace"), std::string::npos);
}

TEST(Help, ExampleThatIsTooLong_IsContinuedAsAShellReadsIt) {
  const Program program;
  const auto help = said(program, {"init", "--help"});
  EXPECT_NE(help.find("  $ thinpipe init my.toml --text texts/ "), std::string::npos) << help;
  EXPECT_NE(help.find(" \\\n      "), std::string::npos) << help;
}

TEST(Help, VersionIsOneLine) {
  const Program program;
  EXPECT_EQ(said(program, {"--version"}), "thinpipe " THINPIPE_VERSION "\n");
}

// ---- completion ----

// Splits the line like bash: into words at spaces and around =.
std::string quoted_words(const std::string& line, size_t* last) {
  std::vector<std::string> words(1);
  for (const char letter : line) {
    if (letter == ' ')
      words.emplace_back();
    else if (letter == '=')
      words.emplace_back("=");
    else if (words.back() == "=")
      words.emplace_back(1, letter);
    else
      words.back() += letter;
  }
  *last = words.size() - 1;
  return fmt::format("'{}'", fmt::join(words, "' '"));
}

class Shell {
 public:
  explicit Shell(const std::string& name) : script_(said(program_, {"completion", name})) {
    write_file(program_ / "script", script_);
    write_file(program_ / "my.toml", "");
    std::filesystem::create_directories(program_.data() / "runs" / "2026-01-31-17-05-09");
    write_file(program_.data() / "runs" / "2026-01-31-17-05-09" / "config.toml", "");
    std::filesystem::create_directory(program_ / "bin");
    std::filesystem::create_symlink(THINPIPE_PROGRAM, program_ / "bin/thinpipe");
    path_ = "PATH=" + (program_ / "bin").string() + ":$PATH; ";
  }

  const std::string& script() const { return script_; }
  const Program& program() const { return program_; }

  std::string run(const std::string& shell, const Arguments& options, const std::string& commands) const {
    auto arguments = options;
    arguments.insert(arguments.end(), {"-c", path_ + commands});
    const auto outcome = program_.run(arguments, {.program = shell});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }

  // What bash offers at the end of this line.
  Lines bash(const std::string& line) const {
    size_t last = 0;
    const auto words = quoted_words(line, &last);
    return lines_of(run("/bin/bash", {"--norc"},
                        fmt::format("source ./script; COMP_LINE='{}' COMP_POINT={} COMP_WORDS=({}) COMP_CWORD={}; "
                                    "_thinpipe; [ ${{#COMPREPLY[@]}} = 0 ] || printf '%s\\n' \"${{COMPREPLY[@]}}\"",
                                    line, line.size(), words, last)));
  }

 private:
  Program program_;
  std::string script_;
  std::string path_;
};

TEST(BashCompletion, OffersCommandsOptionsAndFixedValues) {
  const Shell shell("bash");
  EXPECT_EQ(shell.bash("thinpipe trai"), Lines{"train"});
  EXPECT_EQ(shell.bash("thinpipe --log-level debug trai"), Lines{"train"});
  EXPECT_EQ(shell.bash("thinpipe lab ex"), Lines{"exactness"});
  EXPECT_EQ(shell.bash("thinpipe train --se"), Lines{"--set"});
  EXPECT_EQ(shell.bash("thinpipe bench wan --ra"), Lines{"--rank"});
  EXPECT_EQ(shell.bash("thinpipe --log-level de"), Lines{"debug"});
  EXPECT_EQ(shell.bash("thinpipe --log-level=de"), Lines{"debug"});
  EXPECT_EQ(shell.bash("thinpipe completion "), (Lines{"bash", "zsh"}));
  EXPECT_EQ(shell.bash("thinpipe wor"), Lines{}) << "work is hidden";
  EXPECT_EQ(shell.bash("thinpipe serve --loc"), Lines{}) << "--local is hidden";
  EXPECT_EQ(shell.bash("thinpipe export --format "), (Lines{"hf", "gguf"}));
  EXPECT_EQ(shell.bash("thinpipe generate --prompt --st"), Lines{}) << "is the prompt";
}

TEST(BashCompletion, OffersFilesRunsAndKeys) {
  const Shell shell("bash");
  EXPECT_EQ(shell.bash("thinpipe train m"), Lines{"my.toml"});
  EXPECT_EQ(shell.bash("thinpipe train --steps 5 m"), Lines{"my.toml"});
  EXPECT_EQ(shell.bash("thinpipe eval --text=m"), Lines{"my.toml"});
  EXPECT_EQ(shell.bash("thinpipe train --run-dir bi"), Lines{"bin"});
  EXPECT_EQ(shell.bash("thinpipe train my.toml "), Lines{}) << "takes no second config";
  EXPECT_EQ(shell.bash("thinpipe show 20"), Lines{"2026-01-31-17-05-09"});
  EXPECT_EQ(shell.bash("thinpipe kick somebody 20"), Lines{"2026-01-31-17-05-09"});
  EXPECT_EQ(shell.bash("thinpipe train --resume 20"), Lines{"2026-01-31-17-05-09"});
  Lines keys;
  for (const auto& key : config_keys()) {
    if (key.section == "model") keys.push_back(key.full() + "=");
  }
  EXPECT_EQ(shell.bash("thinpipe train --set model."), keys);
  EXPECT_EQ(shell.bash("thinpipe train --set model.qk_norm=t"), Lines{"true"});
  EXPECT_EQ(shell.bash("thinpipe train --set boundary.pack=int"), (Lines{"int8", "int4", "int2"}));
  EXPECT_EQ(shell.bash("thinpipe train --set=model.mode=sub"), Lines{"subspace"});
  EXPECT_EQ(shell.bash("thinpipe train --set train.device="), (Lines{"cpu", "cuda"}));
}

TEST(BashCompletion, KnowsEveryCommandThatHelpLists) {
  const Shell shell("bash");
  const auto offered = shell.bash("thinpipe ");
  const std::set<std::string> commands(offered.begin(), offered.end());
  std::set<std::string> listed;
  for (const auto& [command, group] : listed_commands(said(shell.program(), {"--help"}))) listed.insert(command);
  EXPECT_EQ(commands, listed);
}

// Types the line and a tab into an interactive zsh and reads the result.
TEST(ZshCompletion, CompletesWhatIsTyped) {
  const std::string zsh = "/bin/zsh";
  if (!std::filesystem::exists(zsh)) GTEST_SKIP() << "there is no zsh on this machine";
  if (!test::has_pseudo_terminals()) GTEST_SKIP() << "no pseudo-terminals here";
  const Shell shell("zsh");
  write_file(shell.program() / "drive", R"zsh(
zmodload zsh/zpty
zpty z "TERM=dumb PS1= zsh -f -i"
zpty -w z "PS1=; unsetopt prompt_cr prompt_sp; autoload -U compinit; compinit -D -u; source ./script; print rea''dy"
zpty -r z banner '*ready*'
# A line's completion is seen by what zsh echoes once an unknown command follows: ctrl-A puts "print -r" before it.
for line in "$@"; do
  zpty -n -w z "$line"$'\t\x01print -r -- "<\x05>"\n'
  zpty -r z answer $'*\n<*>*'
  print -r -- "${${answer##*$'\n'<}%%>*}"
done
zpty -d z
)zsh");
  const Arguments typed{"thinpipe trai",
                        "thinpipe lab ex",
                        "thinpipe train --se",
                        "thinpipe train my",
                        "thinpipe show 2026",
                        "thinpipe train --set model.mo",
                        "thinpipe --log-level de",
                        "thinpipe train --set model.mode=de",
                        "thinpipe --log-level=de",
                        "thinpipe eval --text=my",
                        "thinpipe train --run-dir bi"};
  const Lines whole{"thinpipe train",
                    "thinpipe lab exactness",
                    "thinpipe train --set",
                    "thinpipe train my.toml",
                    "thinpipe show 2026-01-31-17-05-09",
                    "thinpipe train --set model.mode=",
                    "thinpipe --log-level debug",
                    "thinpipe train --set model.mode=dense",
                    "thinpipe --log-level=debug",
                    "thinpipe eval --text=my.toml",
                    "thinpipe train --run-dir bin"};
  EXPECT_EQ(lines_of(shell.run(zsh, {"-f"}, fmt::format("source ./drive '{}'", fmt::join(typed, "' '")))), whole);
}

TEST(Completion, UnknownShell_IsRefused) {
  const Program program;
  expect_refused(program, {"completion", "fish"}, {"fish is not one of bash, zsh"});
  expect_refused(program, {"completion"}, {"SHELL is required"});
}

// ---- libtorch ----

// The dynamic linker's output while the program runs.
std::string linker_said(const Program& program, const std::string& command) {
  return program.run({"-c", "LD_DEBUG=files exec " THINPIPE_PROGRAM " " + command}, {.program = "/bin/sh"}).err;
}

TEST(Libtorch, IsNotLoadedByCommandsThatDoNotNeedIt) {
  const Program program;
  write_file(program / "corpus.txt", "");
  for (const std::string command :
       {"--help", "train --help", "--version", "completion bash", "__complete train --set model.", "runs", "status",
        "pause", "resume", "invite", "kick somebody", "data list", "train --no-such-option"}) {
    const auto linker = linker_said(program, command);
    EXPECT_NE(linker.find("calling init: "), std::string::npos) << command << " says nothing about what it loads";
    EXPECT_EQ(linker.find("libtorch"), std::string::npos) << command;
  }
}

TEST(Libtorch, IsLoadedByCommandsThatNeedIt) {
  const Program program;
  EXPECT_NE(linker_said(program, "train no-such-file.toml").find("libtorch"), std::string::npos);
}

}  // namespace
}  // namespace thinpipe
