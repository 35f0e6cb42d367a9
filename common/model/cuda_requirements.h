// The requirements that the kernels of this program make on a CUDA device and its driver.
//
// The functions are pure, so that they can be tested without a GPU. ParseDevice
// (common/model/decoder.h) asks the CUDA run-time for the numbers.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace taopd {

// Returns an error unless the driver can run programs of this CUDA run-time. Versions are CUDA's,
// 1000 * major + 10 * minor, as cudaDriverGetVersion and cudaRuntimeGetVersion return them. A
// driver runs all run-times of its own major version and of older ones (NVIDIA's "CUDA
// Compatibility", minor version compatibility). A driver_version of 0 means that there is no
// driver, which is an error, too.
absl::Status CheckCudaDriver(int driver_version, int runtime_version);

// Returns an error unless one of the architectures runs on a device of this compute capability, or
// if only their PTX does and the driver is too old to compile it. `architectures` is
// CMAKE_CUDA_ARCHITECTURES with commas, such as "80-real,90a-real,100-virtual"; `capability` is
// 10 * major + minor.
//
// Machine code (-real) of X.Y runs on devices of X.Z with Z >= Y; with the suffix "a" on X.Y alone.
// PTX (-virtual) runs on X.Y and on everything newer, and needs a driver at least as new as the
// run-time whose compiler made it. An architecture without a suffix is both. (CUDA C++ Programming
// Guide, "Application Compatibility".)
absl::Status CheckCudaArchitecture(std::string_view architectures, int capability,
                                   int driver_version, int runtime_version);

}  // namespace taopd
