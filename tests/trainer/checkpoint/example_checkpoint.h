// A small checkpoint whose content is determined by its step, so that any other content is noticed.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "common/base/status.h"

namespace taopd::testing {

inline std::string ExampleContent(int64_t step, const std::string& name) {
  std::string content;
  while (content.size() < 20000) content += Concat(name, " of step ", step, "\n");
  return content;
}

inline absl::Status WriteExample(const std::string& dir, int64_t step) {
  std::error_code error;  // a full disk is a status here, not an exception
  std::filesystem::create_directories(dir + "/student", error);
  if (error) return Internal("cannot make ", dir, "/student: ", error.message());
  for (const char* name : {"student/model.bin", "optimizer.bin", "state.json"}) {
    std::ofstream file(dir + "/" + name, std::ios::binary);
    file << ExampleContent(step, name);
    file.close();
    if (!file.good()) return Internal("cannot write ", name);
  }
  return absl::OkStatus();
}

inline bool IsExample(const std::string& dir, int64_t step) {
  for (const char* name : {"student/model.bin", "optimizer.bin", "state.json"}) {
    std::ifstream file(dir + "/" + name, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    if (content.str() != ExampleContent(step, name)) return false;
  }
  return true;
}

}  // namespace taopd::testing
