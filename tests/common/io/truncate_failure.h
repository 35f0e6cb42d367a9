// A file system on which ftruncate(2) fails.
#pragma once

namespace taopd::testing {

// While it lives, ftruncate(2) fails in this process.
class TruncateFailure {
 public:
  TruncateFailure();
  ~TruncateFailure();
};

}  // namespace taopd::testing
