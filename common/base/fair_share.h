// How much of a bounded resource one client may hold, so that others find some of it free.
#pragma once

#include <algorithm>
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

// What must stay free when somebody takes `added` units of a resource of `capacity`: as much again,
// and never more than a 32nd of the capacity.
//
// Otherwise a flood of long requests fills a resource until nothing at all fits, and it is luck
// whether a short request or the flood takes what becomes free next. A flood that always leaves as
// much as it takes keeps a place for requests of at most half its length (in a resource of which it
// takes large parts, for requests of at most a 64th of the capacity): such a request is refused
// only because of others that are short, too.
inline int64_t KeptFree(int64_t added, int64_t capacity) { return std::min(added, capacity / 32); }

}  // namespace taopd
