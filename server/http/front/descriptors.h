// How many connections the process has file descriptors for. gRPC 1.51 never accepts again once
// accepting has failed for lack of a descriptor (CVE-2023-4785), so some are kept free.
#pragma once

namespace taopd {

// The connections that HTTP may hold: half of what is free now, less a reserve for files and
// libraries. At least a few.
int MaxConnectionsOfDescriptors();

// Whether a descriptor that the kernel has just given, always the lowest free one, shows that hardly
// any are left.
bool IsScarce(int fd);

}  // namespace taopd
