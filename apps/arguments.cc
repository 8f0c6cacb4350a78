#include "arguments.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "help.h"

namespace thinpipe {

Value one_of(std::vector<std::string> words) {
  return {fmt::format("{}", fmt::join(words, "|")), Offer::kWords, std::move(words)};
}

Command::Command(const std::string& name, const std::string& help) : CLI::App(help, name) {
  formatter(help_formatter());
  get_help_ptr()->description("show this help and exit");
}

Command& Command::command(const std::string& name, const std::string& help, const std::string& group) {
  const auto added = std::make_shared<Command>(name, help);
  added->group(group);
  add_subcommand(added);
  if (!group.empty()) commands_.push_back(added.get());
  return *added;
}

void Command::run_argument(std::string& run) {
  value("RUN", run, kRun, "folder or name of a run; default: the newest run");
}

void Command::config_argument(std::string& config) {
  value("CONFIG", config, kFile, "TOML file (docs/config.md); default: the default small model");
}

void Command::corpus_argument(std::string& corpus) {
  value("CORPUS", corpus, kFile, "kjv, a text or .jsonl file, or a folder of them")->required();
}

void Command::run_dir_option(std::string& folder) {
  value("--run-dir", folder, kFolder, "folder for the run's files; default: a new folder in the data folder");
}

void Command::run_place_options(std::string& folder, std::string& name) {
  run_dir_option(folder);
  value("--name", name, {"NAME"}, "name of the run; default: the time");
}

void Command::set_option(std::vector<std::string>& overrides, const std::string& help) {
  value("--set", overrides, {"KEY=VALUE", Offer::kSettings}, help);
}

void Command::json_flag(bool& json) { add_flag("--json", json, "also print one JSON object, on the last line"); }

const Value* Command::value_of(const CLI::Option* option) const {
  const auto found = values_.find(option);
  return found == values_.end() ? nullptr : &found->second;
}

CLI::Option* Command::remember(CLI::Option* option, const Value& value) {
  if (!option->get_positional()) option->option_text(value.shown);
  option->check([words = value.words, may_be_empty = value.may_be_empty](const std::string& given) {
    if (given.empty() && !may_be_empty) return std::string("the value is empty; give one or leave it out");
    if (words.empty() || std::find(words.begin(), words.end(), given) != words.end()) return std::string();
    return fmt::format("{} is not one of {}", given, fmt::join(words, ", "));
  });
  values_[option] = value;
  return option;
}

}  // namespace thinpipe
