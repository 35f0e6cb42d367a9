// File descriptors. A flood of connections over one protocol must not take all of them: the other
// protocol needs some, and so do files and libraries. gRPC 1.51 of itself stops accepting for good
// when it has once run out of them (CVE-2023-4785).
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
