// Preloaded into a program (LD_PRELOAD), starts it repeatedly although it is loaded only once:
// loading LibTorch takes longer than most runs of tests.
//
// In place of main, the program takes requests until their end, and forks a process for each of
// them, which calls main with the arguments, the environment and the files of the request:
//   - from the socket TAOPD_START_SOCKET (loaded_program.h): the process is a child of the test.
//   - from stand-ins (stand_in.cc), which connect to the socket TAOPD_START_LISTENER, until
//     standard input ends: the process is a child of one that passes on signals and its status.
// A process of this kind that executes its own program, as a launcher of ranks does, calls main
// again, too.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);
Main main_of_program = nullptr;

bool ReadAll(int file, void* to, size_t size) {
  for (auto* at = static_cast<char*>(to); size > 0;) {
    const ssize_t count = read(file, at, size);
    if (count <= 0) return false;
    at += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

// Takes strings off a request, in which each ends with a zero.
class Request {
 public:
  explicit Request(std::string bytes) : bytes_(std::move(bytes)) {}
  char* Next() {
    char* text = bytes_.data() + at_;
    at_ += std::strlen(text) + 1;
    return text;
  }
  // Takes as many strings as the next one says. A null pointer follows them.
  std::vector<char*> NextList() {
    std::vector<char*> list(static_cast<size_t>(std::atoll(Next())) + 1);
    for (size_t i = 0; i + 1 < list.size(); ++i) list[i] = Next();
    return list;
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

void OpenAs(int file, const char* path) {
  const int opened = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(opened, file);
  close(opened);
}

[[noreturn]] void CallMain(const std::vector<char*>& argv) {
  std::exit(
      main_of_program(static_cast<int>(argv.size()) - 1, const_cast<char**>(argv.data()), environ));
}

// Enters the directory of a request and opens its files for output.
void OpenFiles(Request* request) {
  if (chdir(request->Next()) != 0) _exit(126);
  const char* output = request->Next();
  const char* errors = request->Next();
  OpenAs(STDOUT_FILENO, output);
  if (*errors == '\0') {
    dup2(STDOUT_FILENO, STDERR_FILENO);
  } else {
    OpenAs(STDERR_FILENO, errors);
  }
}

// Calls main with the arguments and the environment of a request. The process ends with `parent`.
[[noreturn]] void Run(Request* request, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  const std::vector<char*> argv = request->NextList();
  static std::vector<char*> environment;
  environment = request->NextList();
  environ = environment.data();
  CallMain(argv);
}

int ServeTest(int socket) {
  const pid_t test = getppid();
  for (uint64_t size = 0; ReadAll(socket, &size, sizeof(size));) {
    std::string bytes(size, '\0');
    if (!ReadAll(socket, bytes.data(), size)) break;
    const pid_t between = fork();
    if (between < 0) break;
    if (between == 0) {
      Request request(std::move(bytes));
      OpenFiles(&request);  // so that they exist when the test continues
      const pid_t parent = getpid(), pid = fork();
      if (pid == 0) {
        close(socket);
        // The parent ends immediately, and the test adopts this process.
        while (getppid() == parent) sched_yield();
        Run(&request, test);
      }
      _exit(write(socket, &pid, sizeof(pid)) == sizeof(pid) ? 0 : 1);
    }
    waitpid(between, nullptr, 0);
    // The test may wait for the process from now on.
    const char adopted = 1;
    if (write(socket, &adopted, 1) != 1) break;
  }
  return 0;
}

using Streams = std::array<int, 3>;

// Receives the size of a stand-in's request and its standard streams.
bool ReceiveStreams(int connection, uint64_t* size, Streams* streams) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(Streams))] = {};
  iovec bytes = {size, sizeof(*size)};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(connection, &message, MSG_WAITALL) != sizeof(*size)) return false;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_len != CMSG_LEN(sizeof(Streams))) return false;
  std::memcpy(streams->data(), CMSG_DATA(header), sizeof(Streams));
  return true;
}

// Passes on the signals of a stand-in to `pid` until that ends. Returns its status.
int PassOnSignals(int connection, pid_t pid) {
  const auto process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd files[] = {{process, POLLIN, 0}, {connection, POLLIN, 0}};
  while (poll(files, 2, -1) > 0 && files[0].revents == 0) {
    char number = 0;
    if (read(connection, &number, 1) != 1) {  // the stand-in was killed
      number = SIGKILL;
      files[1].fd = -1;
    }
    kill(pid, number);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

[[noreturn]] void ServeStandIn(int connection) {
  uint64_t size = 0;
  Streams streams;
  if (!ReceiveStreams(connection, &size, &streams)) _exit(1);
  std::string bytes(size, '\0');
  if (!ReadAll(connection, bytes.data(), size)) _exit(1);
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) _exit(1);  // PassOnSignals would signal all processes
  for (int file = 0; file < 3; ++file) {
    if (pid == 0) dup2(streams[static_cast<size_t>(file)], file);
    close(streams[static_cast<size_t>(file)]);
  }
  if (pid == 0) {
    close(connection);
    Request request(std::move(bytes));
    if (chdir(request.Next()) != 0) _exit(126);
    Run(&request, parent);
  }
  const int status = PassOnSignals(connection, pid);
  _exit(write(connection, &status, sizeof(status)) == sizeof(status) ? 0 : 1);
}

int ServeStandIns(int listener) {
  pollfd files[] = {{listener, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  while (poll(files, 2, -1) > 0 && files[1].revents == 0) {
    const int connection = accept(listener, nullptr, nullptr);
    if (fork() == 0) {
      close(listener);
      ServeStandIn(connection);
    }
    close(connection);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  return 0;
}

int Serve(int, char**, char**) {
  if (const char* socket = std::getenv("TAOPD_START_SOCKET")) return ServeTest(std::atoi(socket));
  return ServeStandIns(std::atoi(std::getenv("TAOPD_START_LISTENER")));
}

void CloseOnExec() {
  std::vector<int> files;
  DIR* const dir = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(dir)) files.push_back(std::atoi(entry->d_name));
  closedir(dir);
  for (const int file : files) {
    const int flags = fcntl(file, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) != 0) close(file);
  }
}

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// The C library's function that calls main, after the constructors of the program.
extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                                 void (*rtld_fini)(), void* stack_end) {
  main_of_program = main;
  return Real<decltype(__libc_start_main)>("__libc_start_main")(Serve, argc, argv, init, fini,
                                                                rtld_fini, stack_end);
}

extern "C" int execv(const char* path, char* const* argv) {
  if (std::strcmp(path, "/proc/self/exe") != 0) return Real<decltype(execv)>("execv")(path, argv);
  CloseOnExec();
  std::vector<char*> arguments;
  for (; *argv != nullptr; ++argv) arguments.push_back(*argv);
  arguments.push_back(nullptr);
  CallMain(arguments);
}
