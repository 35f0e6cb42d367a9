// taopd-trainer launch: several ranks of a training run on this machine.
//
// The ranks get the variables that rendezvous.h reads. If one fails, the others learn it from each
// other and end; those that do not are terminated, then killed. If this process is killed, they get
// SIGTERM. The first SIGTERM or SIGINT is passed on to all ranks; others within five seconds count
// as the same request (repeated_signals.h). A later one is passed on as well. Ranks that still run
// after two more seconds are killed, and the code is 77 unless all ranks ended regularly.
#include <absl/time/clock.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/base/exit_code.h"
#include "common/base/file_descriptor.h"
#include "common/base/log.h"
#include "common/base/service/repeated_signals.h"
#include "common/dist/rendezvous.h"
#include "common/dist/rendezvous_addresses.h"
#include "common/dist/watch_token.h"
#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"

namespace taopd {
namespace {

constexpr int64_t kMaxProcesses = 1024;

struct LaunchOptions {
  std::vector<std::string> command;  // the program and its arguments
  int64_t num_processes = 1;
  // This machine's number, and the number of machines, which all start equally many processes. On
  // several machines the ranks meet at master_addr:master_port; on one, at a port of 127.0.0.1 that
  // the system picks.
  int64_t node_rank = 0;
  int64_t num_nodes = 1;
  std::string master_addr;
  int master_port = 0;
};

// Kubeflow describes the nodes with PET_ variables; without them this machine is the only one.
absl::Status ReadNodes(const Environment& environment, LaunchOptions* options) {
  if (!environment("PET_NNODES")) return absl::OkStatus();
  // For the rendezvous of the nodes, each node counts as one process.
  TAOPD_ASSIGN_OR_RETURN(const Rendezvous node,
                         ReadRendezvous([&](const std::string& name) -> std::optional<std::string> {
                           if (name == "PET_NPROC_PER_NODE" || !name.starts_with("PET_"))
                             return std::nullopt;
                           return environment(name);
                         }));
  options->num_nodes = node.world_size;
  options->node_rank = node.rank;
  options->master_addr = node.master_addr;
  options->master_port = node.master_port;
  return absl::OkStatus();
}

// Times after the first failure. Connected ranks end each other before kTerminateAfter
// (ProcessGroupOptions::grace). A rank that still waits for one that never starts must be killed.
constexpr absl::Duration kTerminateAfter = absl::Seconds(10), kKillAfter = absl::Seconds(13);
constexpr char kSecretVariable[] = "TAOPD_RANK_SECRET";
// After a request to end immediately, ranks have this much time to log what is saved.
constexpr absl::Duration kSavedTextGrace = absl::Seconds(2);

struct RankProcess {
  int64_t rank = 0;
  pid_t pid = -1;
  bool has_ended = false;
};

// Use it once, in a process that has one thread.
class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {
    // If the parent left SIGCHLD ignored, waitpid would never learn how a rank ended.
    ::signal(SIGCHLD, SIG_DFL);
    sigemptyset(&signals_);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&signals_, signal);
    sigprocmask(SIG_BLOCK, &signals_, &signals_before_);
  }

  absl::Status Start() {
    if (options_.num_nodes == 1) {
      TAOPD_RETURN_IF_ERROR(Listen());
      // Several nodes have several launchers, which cannot agree on a secret.
      if (std::getenv(kSecretVariable) == nullptr) secret_ = NewWatchNonce();
    }
    for (int64_t i = 0; i < options_.num_processes; ++i) {
      RankProcess process;
      process.rank = options_.node_rank * options_.num_processes + i;
      process.pid = fork();
      if (process.pid == 0) RunChild(i, process.rank);
      if (process.pid < 0) {
        const int error = errno;
        KillAll();
        return Unavailable("cannot start rank ", process.rank, ": ", std::strerror(error));
      }
      processes_.push_back(process);
    }
    listener_.reset();  // rank 0 has it
    return absl::OkStatus();
  }

  // Returns the exit code of the first rank that failed (128 + the signal if it was killed), that
  // of ranks that were stopped, or 0.
  int WaitForAll() {
    while (num_running() > 0) {
      const timespec second = {1, 0};
      const int signal = sigtimedwait(&signals_, nullptr, &second);
      if (signal == SIGTERM || signal == SIGINT) PassOn(signal);
      Reap();
      if (absl::Now() - end_requested_at_ > kSavedTextGrace) SignalAll(SIGKILL);
      const absl::Duration since = absl::Now() - failed_at_;
      if (since > kTerminateAfter && !has_terminated_) {
        LogWarning("ranks that have not ended are terminated", {{"running", num_running()}});
        SignalAll(SIGTERM);
        has_terminated_ = true;
      }
      if (since > kKillAfter) SignalAll(SIGKILL);
    }
    const bool is_cut_short = exit_code_ != kExitOk && !IsStop(exit_code_);
    return end_requested_at_ != absl::InfiniteFuture() && is_cut_short ? kExitEndedImmediately
                                                                       : exit_code_;
  }

 private:
  void PassOn(int signal) {
    switch (signals_so_far_.Observe(std::chrono::steady_clock::now())) {
      case SignalAction::kStop:
        LogInfo(Concat("passing the signal on to all ranks; another one after ",
                       RepeatedSignals::kSameRequestFor.count(), " s ends them immediately"),
                {{"signal", signal}});
        SignalAll(signal);
        return;
      case SignalAction::kSameRequest:
        return;
      case SignalAction::kEndImmediately:
        LogWarning("ending all ranks now: nothing newer than their newest checkpoint is saved",
                   {{"signal", signal}});
        SignalAll(signal);
        end_requested_at_ = std::min(end_requested_at_, absl::Now());
        return;
    }
  }

  absl::Status Listen() {
    TAOPD_ASSIGN_OR_RETURN(const int fd, ListenAt("127.0.0.1", 0));
    listener_ = std::make_unique<FileDescriptor>(fd);
    port_ = LocalName(fd).second;
    return absl::OkStatus();
  }

  [[noreturn]] void RunChild(int64_t local_rank, int64_t rank) {
    // Ctrl-C of a terminal reaches only this program, which passes it on once.
    setpgid(0, 0);
    // If this program is killed, the ranks save and end.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launcher_) _exit(128 + SIGTERM);  // killed before prctl
    // A signal that comes while the rank loads waits until the rank takes it (command_line.cc).
    sigset_t signals = signals_before_;
    for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
    sigprocmask(SIG_SETMASK, &signals, nullptr);
    const auto set = [](const char* name, const std::string& value) {
      setenv(name, value.c_str(), /*overwrite=*/1);
    };
    set("RANK", Concat(rank));
    set("WORLD_SIZE", Concat(options_.num_nodes * options_.num_processes));
    set("LOCAL_RANK", Concat(local_rank));
    set("LOCAL_WORLD_SIZE", Concat(options_.num_processes));
    set("MASTER_ADDR", listener_ ? "127.0.0.1" : options_.master_addr);
    set("MASTER_PORT", Concat(listener_ ? port_ : options_.master_port));
    if (!secret_.empty()) set(kSecretVariable, secret_);
    // Only the first rank of this machine reports to systemd.
    if (local_rank > 0) unsetenv("NOTIFY_SOCKET");
    if (std::getenv("WATCHDOG_PID") != nullptr) set("WATCHDOG_PID", Concat(getpid()));
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    unsetenv("TAOPD_LISTEN_FD");
    if (listener_ && rank == 0) {
      set("TAOPD_LISTEN_FD", Concat(listener_->get()));
      fcntl(listener_->get(), F_SETFD, 0);  // rank 0 keeps it
    }
    std::vector<char*> argv;
    for (const std::string& argument : options_.command) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }

  void Reap() {
    for (RankProcess& process : processes_) {
      int status = 0;
      if (process.has_ended || waitpid(process.pid, &status, WNOHANG) <= 0) continue;
      process.has_ended = true;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (code == 0) continue;
      if (failed_at_ != absl::InfiniteFuture()) continue;
      // A rank that was asked to stop does so; the others were asked, too, and may still be saving.
      if (IsStop(code)) {
        exit_code_ = std::max(exit_code_, code);
        continue;
      }
      failed_at_ = absl::Now();
      exit_code_ = code;
      LogError(WIFEXITED(status) ? "a rank has failed" : "a rank was killed",
               {{"rank", process.rank},
                {"pid", process.pid},
                {WIFEXITED(status) ? "exit_code" : "signal",
                 WIFEXITED(status) ? code : WTERMSIG(status)}});
    }
  }

  void SignalAll(int signal) {
    for (const RankProcess& process : processes_) {
      if (!process.has_ended) kill(process.pid, signal);
    }
  }
  // Kills the ranks and waits for their end.
  void KillAll() {
    SignalAll(SIGKILL);
    for (RankProcess& process : processes_) {
      while (!process.has_ended && waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      process.has_ended = true;
    }
  }
  int64_t num_running() const {
    return std::ranges::count_if(processes_,
                                 [](const RankProcess& process) { return !process.has_ended; });
  }

  const LaunchOptions& options_;
  const pid_t launcher_ = getpid();
  sigset_t signals_, signals_before_;
  std::unique_ptr<FileDescriptor> listener_;
  int port_ = 0;
  std::string secret_;  // secret of the ranks' watch; empty if the environment has one
  std::vector<RankProcess> processes_;
  int exit_code_ = 0;
  absl::Time failed_at_ = absl::InfiniteFuture();
  bool has_terminated_ = false;
  RepeatedSignals signals_so_far_;
  absl::Time end_requested_at_ = absl::InfiniteFuture();
};

}  // namespace

Subcommand AddLaunch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand(
      "launch",
      "Start several ranks of a command on this machine, such as launch --nproc 2 -- train ...");
  command->add_option("--nproc", options->num_processes, "Number of ranks on this machine")
      ->required()
      ->check(NumberIn(1, kMaxProcesses));
  command
      ->add_option("command", options->command, "The command, with its flags, that each rank runs")
      ->required();
  return {command, [options]() -> absl::Status {
            const Environment environment = ProcessEnvironment();
            if (environment("RANK")) {
              return BadUsage(InvalidArgument(
                  "RANK is set: this process is a rank already and starts no others"));
            }
            TAOPD_RETURN_IF_ERROR(BadUsage(ReadNodes(environment, options.get())));
            options->command.insert(options->command.begin(), "/proc/self/exe");
            Launcher launcher(*options);
            TAOPD_RETURN_IF_ERROR(WithExitCode(kExitUnavailable, launcher.Start()));
            return WithoutMessage(launcher.WaitForAll());
          }};
}

}  // namespace taopd
