// File descriptors, of which a flood of connections could take all. Two things must never be
// without: the other protocol, and gRPC 1.51, some of whose calls fail for good without one
// (CVE-2023-4785 is the best known).
#pragma once

namespace taopd {

// The connections that HTTP may hold: half of what is free now, less a reserve for files and
// libraries. At least a few.
int MaxHttpConnections();

// Whether a descriptor that the kernel has just given, always the lowest free one, shows that fewer
// than `num_kept` are left, beside a reserve for files and libraries.
bool IsScarce(int fd, int num_kept = 0);

// What gRPC leaves to HTTP: a quarter of all, at most 64.
int DescriptorsLeftToHttp();

}  // namespace taopd
