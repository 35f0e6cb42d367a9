// A parser's fuzz entry on its seeds and on damaged ones, the same on every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/support/files.h"
#include "tests/support/mutation.h"

namespace taopd::testing {
namespace {

// TAOPD_FUZZ_SEEDS: files and directories of files, apart by ':', from the root of the tree.
std::vector<std::string> ReadSeeds() {
  std::vector<std::string> paths;
  std::istringstream list(TAOPD_FUZZ_SEEDS);
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

// The words of a libFuzzer dictionary, one a line: "text", \" and \\ and \xNN in it.
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
  const std::vector<std::string> seeds = ReadSeeds();
  ASSERT_FALSE(seeds.empty());
  RunMutations(seeds, ReadDictionary(TAOPD_FUZZ_DICTIONARY), TAOPD_FUZZ_INPUTS, 1);
}

}  // namespace
}  // namespace taopd::testing
