// Ranks as threads of one process, each with a group of its own, over Gloo on 127.0.0.1.
#pragma once

#include <stdlib.h>

#include <functional>
#include <thread>
#include <vector>

#include "common/dist/process_group.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

// Waits for the other ranks.
inline absl::Status Barrier(ProcessGroup& group) {
  return group.AllReduce(at::zeros({1}), Reduction::kSum);
}

// Runs `body` on each rank.
inline void OnRanks(int64_t world_size, ProcessGroupOptions options,
                    const std::function<void(ProcessGroup&)>& body) {
  const TempDir dir;
  options.grace = absl::InfiniteDuration();  // the ranks are one process
  // c10d's flight recorder is one of the process, and not made for several ranks in it.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const Rendezvous where = {.rank = rank,
                                .world_size = world_size,
                                .store_file = dir.File("store"),
                                .prefix = "test"};
      auto group = ProcessGroup::Connect(where, options);
      EXPECT_OK(group);
      if (group.ok()) body(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace taopd::testing
