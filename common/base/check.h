// Checks for programmer errors. A failed check prints its condition and, for comparisons, both
// values, and aborts the process. An error that a user, a file or a client can cause must never
// reach a check; it is an absl::Status (status.h).
#pragma once

#include <string>

#include "common/base/status.h"

namespace taopd {
// Prints "file:line: check failed: what" to standard error and aborts. The macros below call it.
[[noreturn]] void CheckFailed(const char* file, int line, const std::string& what);
}  // namespace taopd

#define TAOPD_CHECK(condition)                                              \
  do {                                                                      \
    if (!(condition)) ::taopd::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#define TAOPD_CHECK_OP(a, op, b)                                                            \
  do {                                                                                      \
    const auto& checked_a = (a);                                                            \
    const auto& checked_b = (b);                                                            \
    if (!(checked_a op checked_b)) {                                                        \
      ::taopd::CheckFailed(                                                                 \
          __FILE__, __LINE__,                                                               \
          ::taopd::Concat(#a " " #op " " #b " (", checked_a, " against ", checked_b, ")")); \
    }                                                                                       \
  } while (false)

#define TAOPD_CHECK_EQ(a, b) TAOPD_CHECK_OP(a, ==, b)
#define TAOPD_CHECK_LE(a, b) TAOPD_CHECK_OP(a, <=, b)
#define TAOPD_CHECK_LT(a, b) TAOPD_CHECK_OP(a, <, b)
#define TAOPD_CHECK_GE(a, b) TAOPD_CHECK_OP(a, >=, b)
#define TAOPD_CHECK_GT(a, b) TAOPD_CHECK_OP(a, >, b)
