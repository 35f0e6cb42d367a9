// Exceptions of LibTorch and the standard library: what they say, and whether memory ran out.
#pragma once

#include <exception>
#include <string>

namespace taopd {

// Whether `error` was thrown because the memory of the machine or of a device ran out.
bool IsOutOfMemory(const std::exception& error);

// Returns what `error` says, without the stack trace that LibTorch appends to its errors.
std::string MessageOf(const std::exception& error);

}  // namespace taopd
