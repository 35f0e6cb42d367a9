// gRPC runs OnDone after OnCancel has returned, on whichever thread. A counter inside of its
// library orders the two, which ThreadSanitizer does not see: a reactor that frees in OnDone what
// OnCancel uses repeats the order here.
#pragma once

#include <atomic>

namespace taopd {

class ReactionOrder {
 public:
  // The last thing in OnCancel.
  void CancelEnds() { cancel_ended_.store(true, std::memory_order_release); }
  // Call it first in OnDone. It does not wait, because a call that is not cancelled has no
  // OnCancel.
  void DoneBegins() const { (void)cancel_ended_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancel_ended_{false};
};

}  // namespace taopd
