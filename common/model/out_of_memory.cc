#include "common/model/out_of_memory.h"

#include <c10/util/Exception.h>

#include <new>
#include <string_view>

namespace taopd {

bool IsOutOfMemory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // The allocator of the CPU throws a plain c10::Error.
  return dynamic_cast<const c10::Error*>(&error) != nullptr &&
         std::string_view(error.what()).find("DefaultCPUAllocator: ") != std::string_view::npos;
}

std::string MessageOf(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace taopd
