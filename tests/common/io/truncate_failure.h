// A file system that does not cut files.
#pragma once

namespace taopd::testing {

// While it lives, ftruncate(2) fails in this process.
class TruncateFailure {
 public:
  TruncateFailure();
  ~TruncateFailure();
};

}  // namespace taopd::testing
