// Stands in for one of this project's programs in tests of scripts, which start it often: the
// program is loaded once (loaded_program.cc), and each start of this file is a fork of it.
//
// It passes its arguments, environment, directory and standard streams to the program that listens
// at the path of this file with ".socket" after it, passes signals on to the fork, and ends as the
// fork ends. The fork is killed when this process is, but may live for a moment longer.
#include <signal.h>
#include <sys/poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace {

void Add(const std::string& text, std::string* request) {
  request->append(text.c_str(), text.size() + 1);
}

void AddList(char** list, std::string* request) {
  size_t count = 0;
  while (list[count] != nullptr) ++count;
  Add(std::to_string(count), request);
  for (size_t i = 0; i < count; ++i) Add(list[i], request);
}

// Sends the size of the request with the standard streams, and then the request.
bool SendRequest(int connection, const std::string& request) {
  uint64_t size = request.size();
  const int streams[] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(streams))] = {};
  iovec bytes = {&size, sizeof(size)};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(streams));
  std::memcpy(CMSG_DATA(header), streams, sizeof(streams));
  return sendmsg(connection, &message, 0) == sizeof(size) &&
         send(connection, request.data(), size, 0) == static_cast<ssize_t>(size);
}

int Connect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int connection = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
    return connection;
  std::perror(path.c_str());
  std::exit(70);
}

// Ends as a process with this status has ended.
[[noreturn]] void EndWith(int status) {
  if (!WIFSIGNALED(status)) _exit(WEXITSTATUS(status));
  signal(WTERMSIG(status), SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  raise(WTERMSIG(status));
  _exit(70);
}

}  // namespace

int main(int, char** argv) {
  sigset_t passed_on;
  sigfillset(&passed_on);
  sigdelset(&passed_on, SIGCHLD);
  sigprocmask(SIG_BLOCK, &passed_on, nullptr);
  const int signals = signalfd(-1, &passed_on, 0);

  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const int connection = Connect(self.string() + ".socket");
  std::string request;
  Add(std::filesystem::current_path(), &request);
  AddList(argv, &request);
  AddList(environ, &request);
  if (!SendRequest(connection, request)) std::perror("stand_in");

  pollfd files[] = {{connection, POLLIN, 0}, {signals, POLLIN, 0}};
  while (poll(files, 2, -1) > 0) {
    if (files[0].revents != 0) {
      int status = 0;
      if (recv(connection, &status, sizeof(status), MSG_WAITALL) == sizeof(status)) EndWith(status);
      std::fprintf(stderr, "%s: the loaded program has gone\n", self.c_str());
      return 70;
    }
    signalfd_siginfo signal;
    if (read(signals, &signal, sizeof(signal)) != sizeof(signal)) break;
    const char number = static_cast<char>(signal.ssi_signo);
    if (send(connection, &number, 1, MSG_NOSIGNAL) != 1) break;
  }
  return 70;
}
