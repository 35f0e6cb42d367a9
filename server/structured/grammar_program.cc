#include "server/structured/grammar_program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace taopd {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr int kMaxReads = 64;  // per call, so that a flood of messages cannot hold it up

std::string BesideThisProgram() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "taopd-grammar" : (self.parent_path() / "taopd-grammar").string();
}

absl::StatusOr<pid_t> Spawn(std::string path, int socket, int crash_report) {
  std::string flag = kGrammarServeFlag;
  char* const arguments[] = {path.data(), flag.data(), nullptr};
  // The environment may hold keys. The program needs only the path of its libraries.
  std::string libraries = "LD_LIBRARY_PATH=";
  const char* const value = std::getenv("LD_LIBRARY_PATH");
  if (value != nullptr) libraries += value;
  char* const variables[] = {value != nullptr ? libraries.data() : nullptr, nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, socket, kGrammarSocketFd);
  ::posix_spawn_file_actions_adddup2(&actions, crash_report, kGrammarCrashReportFd);
  // This program's threads block some signals; the new process must not.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, path.c_str(), &actions, &attributes, arguments, variables);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Unavailable("cannot start ", path, ": ", std::strerror(error));
  return pid;
}

// Moves the descriptor above the two numbers that the program expects, so that neither dup2 below
// overwrites the other's source.
int Moved(int fd) {
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, kGrammarCrashReportFd + 1);
  ::close(fd);
  return moved;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrammarProgram>> GrammarProgram::Start(const std::string& program) {
  int ends[2], report[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Unavailable("socketpair: ", std::strerror(errno));
  const FileDescriptor theirs(Moved(ends[1]));
  if (::pipe2(report, O_CLOEXEC | O_NONBLOCK) != 0) {
    ::close(ends[0]);
    return Unavailable("pipe2: ", std::strerror(errno));
  }
  const FileDescriptor their_report(Moved(report[1]));
  // Made before the process starts, so that no failure after that leaves it running.
  std::unique_ptr<GrammarProgram> started(new GrammarProgram(0, ends[0], report[0]));
  TAOPD_ASSIGN_OR_RETURN(const pid_t pid, Spawn(program.empty() ? BesideThisProgram() : program,
                                                theirs.get(), their_report.get()));
  started->pid_ = pid;
  return started;
}

GrammarProgram::~GrammarProgram() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void GrammarProgram::Flush() {
  while (num_unsent() > 0) {
    const ssize_t n =
        ::send(fd(), unsent_.data() + begin_, num_unsent(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;  // the socket is full, or Receive will see its end
    begin_ += static_cast<size_t>(n);
  }
  if (num_unsent() > 0 && begin_ < kReadBytes) return;
  unsent_.erase(0, begin_);
  begin_ = 0;
}

absl::Status GrammarProgram::Receive(size_t max_frame_bytes, std::vector<std::string>* frames) {
  char bytes[kReadBytes];
  for (int i = 0; i < kMaxReads; ++i) {
    const ssize_t n = ::recv(fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (n <= 0) return Unavailable("the grammar process has ended");
    received_.Append({bytes, static_cast<size_t>(n)});
    while (auto frame = received_.Next(max_frame_bytes)) frames->push_back(*std::move(frame));
    if (!received_.ok()) return DataLoss("the grammar process sends too large a message");
  }
  return absl::OkStatus();
}

CrashReport GrammarProgram::ReadCrashReport() {
  CrashReport report;
  const bool complete = ::read(crash_report_.get(), &report, sizeof(report)) == sizeof(report);
  return complete ? report : CrashReport();
}

}  // namespace taopd
