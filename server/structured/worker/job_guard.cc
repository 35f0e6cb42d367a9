#include "server/structured/worker/job_guard.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/exit_code.h"
#include "server/structured/wire.h"

namespace taopd {
namespace {

// The handlers have a stack of their own, because a crash may mean that the thread's is full.
constexpr size_t kHandlerStackBytes = 64 << 10;

thread_local CrashReport current_job;

void WriteCrashReport(int number) {
  CrashReport report = current_job;
  report.reason = number == SIGPROF ? CrashReport::kTimedOut : CrashReport::kCrashed;
  (void)!::write(kGrammarCrashReportFd, &report, sizeof(report));
  ::_exit(kExitInternal);
}

double ThreadCpuMs() {
  timespec now = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

}  // namespace

void CatchCrashes() {
  struct sigaction action = {};
  action.sa_handler = WriteCrashReport;
  action.sa_flags = SA_ONSTACK;
  for (const int number : {SIGPROF, SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE})
    ::sigaction(number, &action, nullptr);
}

JobGuard::JobGuard() {
  static thread_local char handler_stack[kHandlerStackBytes];
  stack_t stack = {};
  stack.ss_sp = handler_stack;
  stack.ss_size = sizeof(handler_stack);
  ::sigaltstack(&stack, nullptr);
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGPROF;
  event._sigev_un._tid = static_cast<pid_t>(::syscall(__NR_gettid));
  timer_t timer = nullptr;
  if (::timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) != 0) ::_exit(kExitInternal);
  timer_ = timer;
}

void JobGuard::SetTimer(int64_t ms) {
  itimerspec spec = {};
  spec.it_value.tv_sec = ms / 1000;
  spec.it_value.tv_nsec = ms % 1000 * 1'000'000;
  ::timer_settime(static_cast<timer_t>(timer_), 0, &spec, nullptr);
}

void JobGuard::Begin(uint64_t grammar, uint64_t text, int64_t cpu_limit_ms) {
  current_job = {0, grammar, text};
  begun_ms_ = ThreadCpuMs();
  SetTimer(cpu_limit_ms);
}

double JobGuard::ElapsedMs() const { return ThreadCpuMs() - begun_ms_; }

double JobGuard::End() {
  SetTimer(0);
  current_job = {};
  return ElapsedMs();
}

}  // namespace taopd
