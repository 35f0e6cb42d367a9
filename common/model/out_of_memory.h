// Tells a lack of memory from the other errors of LibTorch and the standard library.
#pragma once

#include <exception>
#include <string>

namespace taopd {

// Whether `error` was thrown because the memory of the machine or of a device ran out.
bool IsOutOfMemory(const std::exception& error);

// Returns the first line of error.what(), because LibTorch appends a stack trace to its errors.
inline std::string FirstLine(const std::exception& error) {
  const std::string what = error.what();
  return what.substr(0, what.find('\n'));
}

}  // namespace taopd
