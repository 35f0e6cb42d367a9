// How much of a bounded resource one client may hold, so that others find some of it free.
#pragma once

#include <cstdint>

namespace taopd {

// Whether a client may hold `held` units of a resource if `free` units are then left for everybody.
// `share` in (0, 1] is the part of the resource that a client may hold while nobody else holds any;
// 1 means no limit.
//
// The limit follows what is free: nobody may hold more than share / (1 - share) times as much. So N
// clients that take what they can get hold equal parts, and a part of the same order stays free for
// the next one: with a share of 0.5 each of them, and the rest, is 1 / (N + 1) of the resource.
// (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
// IEEE/ACM Transactions on Networking, 1998.)
inline bool FitsShare(int64_t held, int64_t free, double share) {
  return share >= 1.0 ||
         (1.0 - share) * static_cast<double>(held) <= share * static_cast<double>(free);
}

}  // namespace taopd
