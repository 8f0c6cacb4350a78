// The command line as data, read off the tree of CLI::App objects. Help, the completion scripts and the man page are
// all made from it, so that a command that adds itself in commands.h is in each of them without another word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace thinpipe {

// What may stand in an argument's place, as far as a shell can offer it.
enum class Values { kNone, kFiles, kFolders, kRuns, kKeys, kWords };

struct Argument {
  std::vector<std::string> names;  // "-h", "--help"; of a positional its one name
  bool positional = false;
  bool takes_value = true;  // false: a flag
  bool repeats = false;
  bool required = false;
  std::string placeholder;  // what stands for the value: "FILE", "N", "debug|info|warn|error"; "" of a flag
  std::string fallback;     // the value when it is not given, "" when there is none to name
  std::string limits;       // "1 to 256", or ""
  std::string help;
  Values values = Values::kNone;
  std::vector<std::string> words;  // for kWords

  // "--set KEY=VALUE", "-h, --help", "CONFIG"
  std::string shown() const;
};

struct Command {
  std::string path;  // "thinpipe lab exactness"
  std::string name;  // "exactness"
  std::string help;
  std::string group;
  std::string footer;
  std::vector<Argument> arguments;  // hidden ones left out
  std::vector<Command> commands;    // likewise

  // "thinpipe train [OPTIONS] [CONFIG]"
  std::string usage() const;
};

// What the app has now; nothing in it is kept. `parent`: the path of the command above, "" for the program itself.
//
// An argument's values follow from its type_name() - FILE, DIR, RUN, words with | between - or from a CLI::IsMember,
// or, when it has neither, from its name: `run`, `--set`, `config` and the like (the table in command_tree.cc).
Command describe(const CLI::App& app, const std::string& parent = "");

// Lines of at most `width` columns, broken at spaces; a word that is longer stands by itself.
std::vector<std::string> wrapped(std::string_view text, size_t width);

// A footer's lines. Those that are indented are examples, to be shown as they are.
struct FooterLine {
  std::string text;  // without the indent
  bool example = false;
};
std::vector<FooterLine> footer_lines(std::string_view footer);

}  // namespace thinpipe
