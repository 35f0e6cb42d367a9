#include "trainer/cli/unknown_argument.h"

#include <vector>

#include "common/config/settings.h"

namespace taopd {
namespace {

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

std::string DescribeUnknownArgument(const CLI::App& app) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  if (const std::vector<std::string> words = app.remaining(); !words.empty()) {
    const bool is_option = words[0].starts_with("-");
    return Concat(is_option ? "unknown option \"" : "unknown command \"", words[0], "\"",
                  DidYouMean(words[0], is_option ? OptionNames(app) : CommandNames(app)));
  }
  for (const CLI::App* command : commands) {
    const std::vector<std::string> words = command->remaining();
    if (words.empty()) continue;
    return Concat(command->get_name(), ": unknown ",
                  words[0].starts_with("-") ? "option \"" : "argument \"", words[0], "\"",
                  DidYouMean(words[0], OptionNames(*command)));
  }
  return "";
}

}  // namespace taopd
