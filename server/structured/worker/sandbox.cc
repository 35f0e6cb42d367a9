#include "server/structured/worker/sandbox.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <utility>
#include <vector>

namespace taopd {
namespace {

constexpr unsigned kNobody = 65534;

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "taopd-grammar's sandbox does not know this architecture"
#endif

// System calls that are allowed with any arguments.
constexpr int kAllowed[] = {
    __NR_read,          __NR_write,
    __NR_recvfrom,      __NR_sendto,
    __NR_futex,         __NR_munmap,
    __NR_mremap,        __NR_madvise,
    __NR_brk,           __NR_exit,
    __NR_exit_group,    __NR_rt_sigreturn,
    __NR_rt_sigaction,  __NR_rt_sigprocmask,
    __NR_clock_gettime, __NR_clock_nanosleep,
    __NR_nanosleep,     __NR_sched_yield,
    __NR_timer_settime, __NR_getpid,
    __NR_gettid,        __NR_restart_syscall,
    __NR_getrandom,     __NR_sched_getaffinity,
    __NR_sigaltstack,
};
// System calls that are allowed unless they make memory executable. Their third argument is the
// protection.
constexpr int kMemoryCalls[] = {__NR_mmap, __NR_mprotect};

// The offset of the lower half of argument i.
constexpr uint32_t Argument(int i) {
  return static_cast<uint32_t>(offsetof(seccomp_data, args) + sizeof(uint64_t) * i);
}

std::vector<sock_filter> Filter() {
  const auto load = [](size_t offset) {
    return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
  };
  // Skips `count` instructions unless the loaded number is `number`.
  const auto skip_unless = [](uint32_t number, uint8_t count) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, count);
  };
  const sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_filter refuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  std::vector<sock_filter> filter = {
      load(offsetof(seccomp_data, arch)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0), refuse,
      load(offsetof(seccomp_data, nr))};
  for (const int number : kAllowed) {
    filter.push_back(skip_unless(static_cast<uint32_t>(number), 1));
    filter.push_back(allow);
  }
  for (const int number : kMemoryCalls) {
    filter.push_back(skip_unless(static_cast<uint32_t>(number), 4));
    filter.push_back(load(Argument(2)));
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1));
    filter.push_back(refuse);
    filter.push_back(allow);
  }
  // tgkill may only signal this process; abort() needs it.
  filter.push_back(skip_unless(__NR_tgkill, 3));
  filter.push_back(load(Argument(0)));
  filter.push_back(skip_unless(static_cast<uint32_t>(::getpid()), 1));
  filter.push_back(allow);
  filter.push_back(refuse);
  return filter;
}

bool FilterSystemCalls() {
  std::vector<sock_filter> filter = Filter();
  sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  return ::syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

void DropCapabilities() {
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  ::syscall(__NR_capset, &header, none);
}

bool HasCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct held[2] = {};
  return ::syscall(__NR_capget, &header, held) != 0 || held[0].permitted != 0 ||
         held[1].permitted != 0;
}

// Returns 0 if the system does not tell.
int64_t AddressSpaceBytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// Returns whether the limit holds now. It may have been lower before.
bool SetLimit(__rlimit_resource resource, int64_t most) {
  rlimit limit = {};
  if (::getrlimit(resource, &limit) != 0) return false;
  limit.rlim_cur = limit.rlim_max = std::min(limit.rlim_max, static_cast<rlim_t>(most));
  return ::setrlimit(resource, &limit) == 0;
}

}  // namespace

void DropPrivileges(int last_fd) {
  ::close_range(static_cast<unsigned>(last_fd) + 1, ~0u, 0);
  // The server decides when this process ends, even if a terminal signals the whole group.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_IGN);
  std::ofstream("/proc/self/oom_score_adj") << "1000";
  if (::geteuid() == 0 && ::setgroups(0, nullptr) == 0 &&
      ::setresgid(kNobody, kNobody, kNobody) == 0)
    (void)!::setresuid(kNobody, kNobody, kNobody);
  DropCapabilities();
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  // After the change of user, /proc/self belongs to root. Nothing in this process is secret yet, so
  // it may be readable again until EnterSandbox.
  ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

std::string EnterSandbox(int64_t memory_bytes) {
  // The library prints warnings about grammars. Clients must not be able to fill the server's log.
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (null >= 0) ::dup2(null, fd);
  }
  ::close(null);
  std::string missing;
  const int64_t num_bytes = AddressSpaceBytes();
  if (num_bytes == 0 || !SetLimit(RLIMIT_AS, num_bytes + memory_bytes))
    missing += ", memory is not limited";
  for (const auto& [resource, what] : {std::pair{RLIMIT_NOFILE, "descriptors"},
                                       {RLIMIT_CORE, "core dumps"},
                                       {RLIMIT_FSIZE, "files"},
                                       {RLIMIT_NPROC, "processes"}}) {
    if (!SetLimit(resource, 0)) missing += std::string(", ") + what + " are not forbidden";
  }
  if (HasCapabilities()) missing += ", capabilities are kept";
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  const std::string user = "uid " + std::to_string(::getuid());
  return user + (FilterSystemCalls() ? ", seccomp" : ", no seccomp on this system") + missing;
}

}  // namespace taopd
