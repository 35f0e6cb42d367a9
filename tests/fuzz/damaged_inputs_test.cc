// Runs a parser's fuzz entry on its seeds and on damaged seeds, which are the same on every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/support/files.h"
#include "tests/support/mutation.h"

namespace taopd::testing {
namespace {

struct Inputs {
  std::string seeds;       // files and directories of files, separated by ':', from the tree's root
  std::string dictionary;  // a libFuzzer dictionary, from the tree's root; may be empty
  int num_inputs = 0;
};

// Reads the file PROGRAM.inputs next to this program, which taopd_fuzz_test (CMake) writes.
Inputs ReadInputs() {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::istringstream lines(ReadFile(program + ".inputs"));
  Inputs inputs;
  std::getline(lines, inputs.seeds);
  std::getline(lines, inputs.dictionary);
  lines >> inputs.num_inputs;
  return inputs;
}

std::vector<std::string> ReadSeeds(const std::string& names) {
  std::vector<std::string> paths;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ':');) {
    const std::string path = SourcePath(name);
    if (!std::filesystem::is_directory(path)) {
      paths.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const std::string& path : paths) seeds.push_back(ReadFile(path));
  return seeds;
}

// The words of a libFuzzer dictionary: one word per line, in quotes, with the escapes \", \\ and
// \xNN.
std::vector<std::string> ReadDictionary(const std::string& path) {
  std::vector<std::string> words;
  if (path.empty()) return words;
  std::istringstream lines(ReadFile(SourcePath(path)));
  for (std::string line; std::getline(lines, line);) {
    if (line.size() < 2 || line.front() != '"') continue;
    std::string word;
    for (size_t i = 1; i + 1 < line.size(); ++i) {
      if (line[i] != '\\') {
        word += line[i];
      } else if (line[i + 1] == 'x') {
        word += static_cast<char>(std::stoi(line.substr(i + 2, 2), nullptr, 16));
        i += 3;
      } else {
        word += line[++i];
      }
    }
    words.push_back(word);
  }
  return words;
}

TEST(DamagedInputs, EndWithAValueOrAStatus) {
  const Inputs inputs = ReadInputs();
  const std::vector<std::string> seeds = ReadSeeds(inputs.seeds);
  ASSERT_FALSE(seeds.empty());
  ASSERT_GT(inputs.num_inputs, 0);
  RunMutations(seeds, ReadDictionary(inputs.dictionary), inputs.num_inputs, /*seed=*/1);
}

}  // namespace
}  // namespace taopd::testing
