#include "tests/kernels/torch/test_device.h"

namespace taopd::testing {

at::Device TestDevice() { return at::kCPU; }

}  // namespace taopd::testing
