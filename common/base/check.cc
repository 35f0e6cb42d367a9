#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace taopd {

void CheckFailed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace taopd
