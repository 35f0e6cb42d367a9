// Runs the real taopd-teacher for a test. The system picks the ports, the output goes to files, and
// the destructor ends the process.
#pragma once

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace taopd::testing {

inline std::string StoriesModel() { return SourcePath("deploy/examples/stories260K"); }

class TeacherProcess {
 public:
  // `arguments` follow --ready-file; ports are 0 unless they name others. `num_descriptors` is the
  // process's limit of file descriptors; 0 means this process's own limit.
  explicit TeacherProcess(const std::vector<std::string>& arguments, int num_descriptors = 0)
      : process_(Command(arguments, num_descriptors), dir_.File("out"), dir_.File("err")) {}

  // Waits for the ready file. Returns false if the process ends first.
  bool WaitUntilReady() {
    PollUntil(absl::InfiniteDuration(),
              [this] { return std::filesystem::exists(ReadyFile()) || !process_.running(); });
    if (!std::filesystem::exists(ReadyFile())) return false;
    const auto ready = nlohmann::json::parse(ReadFile(ReadyFile()));
    http_port_ = ready["http_port"];
    grpc_port_ = ready["grpc_port"];
    EXPECT_EQ(ready["pid"], pid());
    return true;
  }
  int http_port() const { return http_port_; }
  int grpc_port() const { return grpc_port_; }
  std::string endpoint() const { return "grpc://127.0.0.1:" + std::to_string(grpc_port_); }
  // The URL by which it is asked as a vLLM, in quotes.
  std::string vllm_endpoint() const {
    return "\"vllm+http://127.0.0.1:" + std::to_string(http_port_) + "\"";
  }
  pid_t pid() const { return process_.pid(); }
  bool Alive() { return process_.running(); }

  // Returns the exit code, or 128 + N for a signal.
  int WaitForExit() { return process_.Wait(absl::InfiniteDuration()); }
  void Signal(int signal) { process_.Signal(signal); }
  int Terminate() {
    Signal(SIGTERM);
    return WaitForExit();
  }
  // Ends it without a chance to say so.
  void Kill() {
    Signal(SIGKILL);
    WaitForExit();
  }
  std::string Output() const { return process_.Output(); }
  std::string Errors() const { return ReadFile(dir_.File("err")); }

 private:
  std::string ReadyFile() const { return dir_.File("ready.json"); }
  std::vector<std::string> Command(const std::vector<std::string>& arguments,
                                   int num_descriptors) const {
    std::vector<std::string> command;
    if (num_descriptors != 0) {  // the shell sets the limit and becomes the teacher
      command = {"/bin/sh", "-c", R"(ulimit -n "$0" && exec "$@")",
                 std::to_string(num_descriptors)};
    }
    command.insert(command.end(), {BinaryPath("taopd-teacher"), "--ready-file", ReadyFile()});
    command.insert(command.end(), arguments.begin(), arguments.end());
    // Repeating a flag is an error.
    for (const char* port : {"--port", "--grpc-port"}) {
      if (std::find(arguments.begin(), arguments.end(), port) == arguments.end()) {
        command.insert(command.end(), {port, "0"});
      }
    }
    return command;
  }

  const TempDir dir_;
  Process process_;
  int http_port_ = 0;
  int grpc_port_ = 0;
};

}  // namespace taopd::testing
