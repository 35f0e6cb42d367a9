#include "common/engine/parallel/worker_processes.h"

#include <absl/time/clock.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "common/base/log.h"

namespace taopd {
namespace {

constexpr absl::Duration kTimeToEnd = absl::Seconds(10);
constexpr absl::Duration kPoll = absl::Milliseconds(20);

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

absl::StatusOr<pid_t> Spawn(int64_t rank, int channel_fd) {
  // The child's copy has no close-on-exec flag.
  constexpr int kChildFd = 3;
  std::vector<std::string> arguments = {"taopd-teacher"};
  std::vector<std::string> environment = {Concat(kWorkerFdVariable, "=", kChildFd)};
  for (char** entry = ::environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, channel_fd, kChildFd);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr,
                                  Pointers(arguments).data(), Pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Unavailable("starting rank ", rank, ": ", std::strerror(error));
  return pid;
}

// Returns whether the process has ended, without reaping it, so that its id is not reused.
bool HasEnded(pid_t pid, siginfo_t* how) {
  how->si_pid = 0;
  return ::waitid(P_PID, static_cast<id_t>(pid), how, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         how->si_pid == pid;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerProcesses>> WorkerProcesses::Start(int64_t size) {
  std::unique_ptr<WorkerProcesses> processes(new WorkerProcesses());
  for (int64_t rank = 1; rank < size; ++rank) {
    TAOPD_ASSIGN_OR_RETURN(const auto ends, CommandChannel::MakePair());
    auto channel = std::make_unique<CommandChannel>(ends.first);
    const FileDescriptor theirs(ends.second);
    TAOPD_ASSIGN_OR_RETURN(const pid_t pid, Spawn(rank, theirs.get()));
    LogInfo("tensor parallel rank started", {{"rank", rank}, {"pid", static_cast<int64_t>(pid)}});
    processes->workers_.push_back({pid, std::move(channel)});
  }
  return processes;
}

WorkerProcesses::~WorkerProcesses() {
  for (Worker& worker : workers_) worker.channel.reset();
  const absl::Time deadline = absl::Now() + kTimeToEnd;
  for (const Worker& worker : workers_) {
    siginfo_t how;
    while (!HasEnded(worker.pid, &how) && absl::Now() < deadline) absl::SleepFor(kPoll);
    if (!HasEnded(worker.pid, &how)) ::kill(worker.pid, SIGKILL);
    while (::waitpid(worker.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

absl::Status WorkerProcesses::Send(int64_t rank, const std::string& message) {
  return Annotate(workers_[static_cast<size_t>(rank - 1)].channel->Send(message),
                  Concat("rank ", rank));
}

absl::Status WorkerProcesses::SendToAll(const std::string& message) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    TAOPD_RETURN_IF_ERROR(Send(static_cast<int64_t>(i) + 1, message));
  }
  return absl::OkStatus();
}

absl::Status WorkerProcesses::AwaitReady(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].channel->Await(deadline - absl::Now())) {
      return Unavailable("rank ", i + 1, " has not started within ", absl::FormatDuration(timeout));
    }
    const auto message = workers_[i].channel->Receive();
    if (message.ok() && *message) {
      if (!(*message)->empty()) return FailedPrecondition("rank ", i + 1, ": ", **message);
      continue;
    }
    // A process that ends closes its socket before its exit code is known.
    const absl::Time give_up = absl::Now() + kTimeToEnd;
    while (Health().ok() && absl::Now() < give_up) absl::SleepFor(kPoll);
    TAOPD_RETURN_IF_ERROR(Health());
    return Unavailable("rank ", i + 1, " has closed its channel");
  }
  return absl::OkStatus();
}

absl::Status WorkerProcesses::Health() const {
  for (size_t i = 0; i < workers_.size(); ++i) {
    siginfo_t how;
    if (!HasEnded(workers_[i].pid, &how)) continue;
    return Unavailable("rank ", i + 1, " (pid ", workers_[i].pid, ") ",
                       how.si_code == CLD_EXITED ? "ended with exit code " : "was ended by signal ",
                       how.si_status);
  }
  return absl::OkStatus();
}

}  // namespace taopd
