#include "server/serving/heap_trim.h"

#include <malloc.h>

#include <algorithm>

#include "common/base/memory.h"

namespace taopd {

HeapTrim::HeapTrim() : HeapTrim([] { return AnonymousMemoryBytes(); }, [] { ::malloc_trim(0); }) {}

void HeapTrim::Tick(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const bool has_grown = HasGrownLocked();
  if (now - trimmed_at_ >= (has_grown ? kGrowthInterval : kInterval)) TrimLocked(now);
}

void HeapTrim::TrimGrowth(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (HasGrownLocked()) TrimLocked(now);
}

bool HeapTrim::HasGrownLocked() {
  const int64_t held = held_bytes_();
  least_bytes_ = std::min(least_bytes_, held);
  return held - least_bytes_ >= kGrowthBytes;
}

void HeapTrim::TrimLocked(absl::Time now) {
  trim_();
  trimmed_at_ = now;
  least_bytes_ = held_bytes_();
}

}  // namespace taopd
