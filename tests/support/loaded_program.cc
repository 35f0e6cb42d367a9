// Preloaded into a program (LD_PRELOAD), starts it again and again although it is loaded only once:
// loading LibTorch takes longer than most runs of tests.
//
// In place of main, the program reads requests from the socket TAOPD_START_SOCKET until its end
// (loaded_program.h). For each of them it forks a process, a child of the test, that calls main
// with the arguments, the environment and the files of the request. A process of this kind that
// executes its own program, as a launcher of ranks does, calls main again, too.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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

[[noreturn]] void Run(Request* request, pid_t parent, pid_t test) {
  // The parent ends at once, and the test adopts this process.
  while (getppid() == parent) sched_yield();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != test) _exit(126);
  const std::vector<char*> argv = request->NextList();
  static std::vector<char*> environment;
  environment = request->NextList();
  environ = environment.data();
  CallMain(argv);
}

int Serve(int, char**, char**) {
  const int socket = std::atoi(std::getenv("TAOPD_START_SOCKET"));
  const pid_t test = getppid();
  for (uint64_t size = 0; ReadAll(socket, &size, sizeof(size));) {
    std::string bytes(size, '\0');
    if (!ReadAll(socket, bytes.data(), size)) break;
    const pid_t between = fork();
    if (between == 0) {
      Request request(std::move(bytes));
      OpenFiles(&request);  // so that they exist when the test goes on
      const pid_t parent = getpid(), pid = fork();
      if (pid == 0) {
        close(socket);
        Run(&request, parent, test);
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
