// Tells a lack of memory from the other errors of LibTorch and the standard library.
#pragma once

#include <exception>

namespace taopd {

// Whether `error` was thrown because the memory of the machine or of a device ran out.
bool IsOutOfMemory(const std::exception& error);

}  // namespace taopd
