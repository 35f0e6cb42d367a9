// Starts this project's programs in tests without loading LibTorch each time: a program is loaded
// once, and each start is a fork of it (loaded_program.cc). To start a program as a shell does,
// let a program such as /usr/bin/env execute it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/files.h"

namespace taopd::testing {

// Not thread-safe.
class LoadedProgram {
 public:
  // Returns the loaded program at `path`. Returns null if a start must execute it: it is not one of
  // those that use LibTorch, or a sanitizer does not allow that a library is preloaded.
  static LoadedProgram* At(const std::string& path) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return nullptr;
#else
    if (path != BinaryPath("taopd-trainer") && path != BinaryPath("taopd-teacher")) return nullptr;
    static std::map<std::string, std::unique_ptr<LoadedProgram> > programs;
    std::unique_ptr<LoadedProgram>& program = programs[path];
    if (program == nullptr) program.reset(new LoadedProgram(path));
    return program.get();
#endif
  }
  ~LoadedProgram() { close(socket_); }  // ends it, but none of the started processes
  LoadedProgram(const LoadedProgram&) = delete;
  LoadedProgram& operator=(const LoadedProgram&) = delete;

  // Starts the program in this process's directory and with its environment. Standard output goes
  // to `output_path`, and standard error to `errors_path` or, if that is empty, there too. Returns
  // the process, a child of this one that is killed when this one ends, or -1.
  pid_t Start(const std::vector<std::string>& arguments, const std::string& output_path,
              const std::string& errors_path) {
    std::string request;
    const auto add = [&request](const std::string& text) {
      request.append(text.c_str(), text.size() + 1);
    };
    const auto add_list = [&](const std::vector<std::string>& list) {
      add(std::to_string(list.size()));
      for (const std::string& text : list) add(text);
    };
    for (const std::string& text :
         {std::filesystem::current_path().string(), output_path, errors_path})
      add(text);
    add_list(arguments);
    add_list(Environment());
    const uint64_t size = request.size();
    request.insert(0, reinterpret_cast<const char*>(&size), sizeof(size));
    EXPECT_EQ(send(socket_, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    pid_t pid = -1;
    char adopted = 0;
    EXPECT_EQ(recv(socket_, &pid, sizeof(pid), MSG_WAITALL), static_cast<ssize_t>(sizeof(pid)));
    EXPECT_EQ(recv(socket_, &adopted, 1, MSG_WAITALL), 1);
    return pid;
  }

 private:
  explicit LoadedProgram(const std::string& path) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // a started process loses the parent that has forked it
    int sockets[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    socket_ = sockets[0];
    std::vector<std::string> environment = Environment();
    environment.push_back("LD_PRELOAD=" + TestLibraryPath("loaded_program"));
    environment.push_back("TAOPD_START_SOCKET=" + std::to_string(sockets[1]));
    std::vector<char*> variables;
    for (std::string& text : environment) variables.push_back(text.data());
    variables.push_back(nullptr);
    const char* const argv[] = {path.c_str(), nullptr};
    if (fork() == 0) {
      fcntl(sockets[1], F_SETFD, 0);
      execve(path.c_str(), const_cast<char**>(argv), variables.data());
      _exit(127);
    }
    close(sockets[1]);
  }

  // Returns this process's environment, with the variable that the programs set when they restart
  // themselves (common/base/thread_waits.h).
  static std::vector<std::string> Environment() {
    std::vector<std::string> variables;
    for (char** variable = environ; *variable != nullptr; ++variable)
      variables.emplace_back(*variable);
    if (std::getenv("GOMP_SPINCOUNT") == nullptr && std::getenv("OMP_WAIT_POLICY") == nullptr)
      variables.push_back("GOMP_SPINCOUNT=1000");
    return variables;
  }

  int socket_ = -1;
};

}  // namespace taopd::testing
