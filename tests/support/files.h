// Temporary directories, and the paths of the source tree, of this build's programs and of shared
// data.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace taopd::testing {

// A temporary directory, which the destructor removes.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "taopd-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string SourcePath(const std::string& relative) {
  const char* root = std::getenv("TAOPD_SOURCE_DIR");  // set by ctest
  return std::string(root != nullptr ? root : ".") + "/" + relative;
}
// Returns the path of a program of this build. Tests are in BUILD/tests-bin, programs in BUILD/bin.
inline std::string BinaryPath(const std::string& name) {
  const std::filesystem::path test = std::filesystem::read_symlink("/proc/self/exe");
  return (test.parent_path().parent_path() / "bin" / name).string();
}
// Returns the path of a library that a test loads into a program.
inline std::string TestLibraryPath(const std::string& name) {
  const std::filesystem::path test = std::filesystem::read_symlink("/proc/self/exe");
  return (test.parent_path() / ("lib" + name + ".so")).string();
}
// Returns the path of shared test data in TAOPD_SHARED_DATA, or in ../shared/data next to the tree.
// Empty if it is absent. Example:
//   if (SharedData("x").empty()) GTEST_SKIP() << "shared data is absent";
inline std::string SharedData(const std::string& relative) {
  const char* dir = std::getenv("TAOPD_SHARED_DATA");
  const std::string path =
      (dir != nullptr ? std::string(dir) : SourcePath("../shared/data")) + "/" + relative;
  return std::filesystem::exists(path) ? path : "";
}
inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}
inline void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  EXPECT_TRUE(file.good()) << path;
}

}  // namespace taopd::testing
