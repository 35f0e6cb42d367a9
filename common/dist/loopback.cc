#include "common/dist/loopback.h"

#include "common/dist/meeting_point.h"

namespace taopd {

absl::StatusOr<LoopbackListener> ListenOnLoopback() {
  TAOPD_ASSIGN_OR_RETURN(const int fd, ListenAt("127.0.0.1", 0));
  return LoopbackListener{fd, LocalName(fd).second};
}

}  // namespace taopd
