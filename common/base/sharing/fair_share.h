// The amount of a bounded resource that one client may hold, so that others find some of it free.
#pragma once

#include <algorithm>
#include <cstdint>

namespace taopd {

// Returns whether a client may hold `held` units of a resource if this leaves `free` units for all
// clients. `share` in (0, 1] is the part of the resource that a client may hold while no other
// client holds any; 1 means no limit.
//
// The limit follows the free part: no client may hold more than share / (1 - share) times as much.
// N clients that take all that they can get therefore hold equal parts, and a part of similar size
// stays free for the next one: with a share of 0.5, each of them, and the rest, is 1 / (N + 1) of
// the resource. (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
// switches", IEEE/ACM Transactions on Networking, 1998.)
inline bool FitsShare(int64_t held, int64_t free, double share) {
  return share >= 1.0 ||
         (1.0 - share) * static_cast<double>(held) <= share * static_cast<double>(free);
}

// Returns the units that must stay free when a request takes `added` units of a resource of
// `capacity` units: as many again, but at most a 32nd of the capacity.
//
// Otherwise a flood of long requests fills a resource completely, and it is a matter of luck
// whether a short request or the flood takes the next free units. A flood that always leaves as
// much as it takes keeps a place for requests of at most half its length (if it takes large parts
// of the resource, for requests of at most a 64th of the capacity): such a request is refused only
// because of other short ones.
inline int64_t KeptFree(int64_t added, int64_t capacity) { return std::min(added, capacity / 32); }

}  // namespace taopd
