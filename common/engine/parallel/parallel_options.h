// Options on which all ranks of a tensor parallel model agree.
#pragma once

#include "common/dist/process_group.h"

namespace taopd {

// Returns where the ranks of one machine meet: a port of 127.0.0.1 on which rank 0
// listens.
inline Rendezvous ParallelRendezvous(int64_t rank, int64_t size, int64_t master_port) {
  Rendezvous place;
  place.rank = place.local_rank = rank;
  place.world_size = place.local_world_size = size;
  place.master_addr = "127.0.0.1";
  place.master_port = static_cast<int>(master_port);
  return place;
}

inline ProcessGroupOptions ParallelGroupOptions(at::Device device) {
  ProcessGroupOptions options;
  options.device = device;
  options.connect_timeout = absl::Minutes(2);
  // The ranks do the same work at the same time, so they wait only for differences in speed.
  options.collective_timeout = absl::Minutes(2);
  return options;
}

}  // namespace taopd
