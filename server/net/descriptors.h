// Divides the file descriptors. A flood of connections over one protocol must not take all of them,
// because the other protocol, files and libraries need some as well. gRPC 1.51 by itself stops
// accepting for good once it has run out of them (CVE-2023-4785).
#pragma once

namespace taopd {

// Returns the number of connections that HTTP may hold: half of the free descriptors, minus a
// reserve for files and libraries, but at least a few.
int MaxHttpConnections();

// Returns whether the process, which has just got the descriptor `fd`, has fewer than `num_kept`
// others left besides a reserve for files and libraries. (The kernel gives out the lowest free
// number.)
bool IsScarce(int fd, int num_kept = 0);

// Returns the number that gRPC leaves to HTTP: a quarter of all, at most 64.
int DescriptorsLeftToHttp();

}  // namespace taopd
