// Tests of what the sandbox reports. grammar_host_test.cc tests what it forbids, with the program.
#include "server/structured/worker/sandbox.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

void RefuseLimits() {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_prlimit64, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {4, filter};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

// Enters the sandbox, and ends the process with 0 if the report ends with `end`.
[[noreturn]] void ReportEndsWith(const std::string& end) {
  DropPrivileges(STDERR_FILENO);
  std::_Exit(EnterSandbox(int64_t{1} << 46).ends_with(end) ? 0 : 1);
}

TEST(SandboxTest, NamesWhatTheSystemRefuses) {
  EXPECT_EXIT((RefuseLimits(), ReportEndsWith(", memory is not limited, "
                                              "descriptors are not forbidden, "
                                              "core dumps are not forbidden, "
                                              "files are not forbidden, "
                                              "processes are not forbidden")),
              ::testing::ExitedWithCode(0), "");
}

TEST(SandboxTest, ALowerLimitOfMemoryStays) {
  const rlimit lower = {int64_t{1} << 45, int64_t{1} << 45};
  EXPECT_EXIT((::setrlimit(RLIMIT_AS, &lower), ReportEndsWith(", seccomp")),
              ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace taopd::testing
