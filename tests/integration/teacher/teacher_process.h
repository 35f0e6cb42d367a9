// Runs the real taopd-teacher for a test. The system picks the ports, the output goes to files, and
// the destructor ends the process.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/files.h"

namespace taopd::testing {

inline std::string StoriesModel() { return SourcePath("deploy/examples/stories260K"); }

class TeacherProcess {
 public:
  // `arguments` follow --ready-file; ports are 0 unless they name others. `num_descriptors` is the
  // process's limit of file descriptors; 0 means this process's own limit.
  explicit TeacherProcess(std::vector<std::string> arguments, int num_descriptors = 0) {
    std::vector<std::string> command = {BinaryPath("taopd-teacher"),
                                        "--port",
                                        "0",
                                        "--grpc-port",
                                        "0",
                                        "--ready-file",
                                        ReadyFile()};
    for (const std::string& argument : arguments) {
      // Repeating a flag is an error, so a port that the test names replaces the 0.
      if (argument == "--port") command.erase(command.begin() + 1, command.begin() + 3);
      if (argument == "--grpc-port") {
        const auto at = std::find(command.begin(), command.end(), argument);
        command.erase(at, at + 2);
      }
    }
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& part : command) argv.push_back(part.data());
    argv.push_back(nullptr);
    const std::string out = dir_.File("out"), err = dir_.File("err");
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto most = static_cast<rlim_t>(num_descriptors);
      const rlimit limit = {most, most};
      if (num_descriptors != 0) ::setrlimit(RLIMIT_NOFILE, &limit);
      ::dup2(::open(out.c_str(), O_CREAT | O_WRONLY, 0644), 1);
      ::dup2(::open(err.c_str(), O_CREAT | O_WRONLY, 0644), 2);
      ::execv(argv[0], argv.data());
      ::_exit(126);
    }
  }
  ~TeacherProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  // Waits for the ready file. Returns false if the process ends first.
  bool WaitUntilReady() {
    while (!std::filesystem::exists(ReadyFile())) {
      if (Poll()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const auto ready = nlohmann::json::parse(ReadFile(ReadyFile()));
    http_port_ = ready["http_port"];
    grpc_port_ = ready["grpc_port"];
    EXPECT_EQ(ready["pid"], pid_);
    return true;
  }
  int http_port() const { return http_port_; }
  int grpc_port() const { return grpc_port_; }
  pid_t pid() const { return pid_; }
  bool Alive() { return !Poll(); }

  // Returns the exit code, or 128 + N for a signal.
  int WaitForExit() {
    if (pid_ > 0) {
      int status = 0;
      ::waitpid(pid_, &status, 0);
      SetExit(status);
    }
    return exit_code_;
  }
  int Terminate() {
    ::kill(pid_, SIGTERM);
    return WaitForExit();
  }
  std::string Output() const { return ReadFile(dir_.File("out")); }
  std::string Errors() const { return ReadFile(dir_.File("err")); }

 private:
  std::string ReadyFile() const { return dir_.File("ready.json"); }
  bool Poll() {
    int status = 0;
    if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) SetExit(status);
    return pid_ <= 0;
  }
  void SetExit(int status) {
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
  }

  TempDir dir_;
  pid_t pid_ = -1;
  int exit_code_ = -1;
  int http_port_ = 0;
  int grpc_port_ = 0;
};

}  // namespace taopd::testing
