// What all ranks of a tensor parallel model agree on.
#pragma once

#include "common/dist/process_group.h"

namespace taopd {

inline ProcessGroupOptions ParallelGroupOptions(at::Device device) {
  ProcessGroupOptions options;
  options.device = device;
  options.connect_timeout = absl::Minutes(2);
  // The ranks do the same work at the same time: they wait for each other's unevenness only.
  options.collective_timeout = absl::Minutes(2);
  return options;
}

}  // namespace taopd
