// Runs real programs in tests. A program's output goes to a file, waits have a deadline, and a
// program that is still running at the end of its test is killed.
#pragma once

#include <absl/time/clock.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/loaded_program.h"

namespace taopd::testing {

// Polls until `ready` returns true, and returns false at the deadline. Use it only for the states
// of other processes, which cannot notify this one.
inline bool PollUntil(absl::Duration timeout, const std::function<bool()>& ready) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!ready()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

// Returns the value of an environment variable, or `otherwise` if it is not set.
inline int64_t NumberFromEnvironment(const char* variable, int64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoll(value);
}

class Process {
 public:
  // arguments[0] is the program. Standard output goes to `output_path`, and so does standard error
  // unless `errors_path` is set. The test fails if no process can be started.
  Process(const std::vector<std::string>& arguments, const std::string& output_path,
          const std::string& errors_path = "")
      : output_path_(output_path) {
    LoadedProgram* const program = LoadedProgram::At(arguments[0]);
    pid_ = program != nullptr ? program->Start(arguments, output_path, errors_path)
                              : Execute(arguments, output_path, errors_path);
    if (pid_ < 0) {
      ADD_FAILURE() << "cannot start " << arguments[0];
      finished_ = true;  // for kill and waitpid, -1 is all processes
    }
  }
  ~Process() {
    if (!running()) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal) {
    if (running()) kill(pid_, signal);
  }
  // Waits for the end of the program. Returns its exit code, 128 + the signal if it was killed, or
  // -1 if it still runs at the deadline or was not started.
  int Wait(absl::Duration timeout = absl::Seconds(60)) {
    PollUntil(timeout, [this] { return !running(); });
    return running() ? -1 : exit_code_;
  }
  bool running() {
    if (finished_) return false;
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == 0) return true;
    finished_ = true;
    if (ended == pid_)
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return false;
  }
  pid_t pid() const { return pid_; }
  std::string Output() const { return ReadFile(output_path_); }

 private:
  // Returns the process, or -1.
  static pid_t Execute(const std::vector<std::string>& arguments, const std::string& output_path,
                       const std::string& errors_path) {
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const auto create = [](const std::string& path) {
      return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    };
    const int output = create(output_path);
    const int errors = errors_path.empty() ? output : create(errors_path);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // the program dies with a killed test
      if (getppid() != parent) _exit(126);
      dup2(output, STDOUT_FILENO);
      dup2(errors, STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(output);
    if (errors != output) close(errors);
    return pid;
  }

  const std::string output_path_;
  pid_t pid_ = -1;
  bool finished_ = false;
  int exit_code_ = -1;
};

// Runs a program to its end and returns its exit code. Its output goes to `output`.
inline int RunProgram(const std::vector<std::string>& arguments, const std::string& output_path,
                      std::string* output, absl::Duration timeout = absl::Seconds(60)) {
  Process process(arguments, output_path);
  const int code = process.Wait(timeout);
  *output = process.Output();
  return code;
}

}  // namespace taopd::testing
