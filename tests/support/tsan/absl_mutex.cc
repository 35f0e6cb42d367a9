// absl::Mutex, CondVar and Notification on pthreads, for ThreadSanitizer. The installed Abseil is
// not instrumented and waits on futexes, so ThreadSanitizer would not see its locks. In a program
// these definitions replace the library's, also for gRPC's locks. Readers exclude each other.
#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <pthread.h>
#include <sanitizer/tsan_interface.h>

#include <algorithm>
#include <cerrno>

namespace {

struct State {
  pthread_mutex_t mutex;
  pthread_cond_t unlocked;  // conditions of waiters may have become true
};

// Creates the state at the first use, because a mutex may be a constant-initialized global.
State* StateOf(std::atomic<intptr_t>& place) {
  intptr_t found = place.load(std::memory_order_acquire);
  if (found == 0) {
    auto* made = new State{PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
    if (place.compare_exchange_strong(found, reinterpret_cast<intptr_t>(made),
                                      std::memory_order_acq_rel))
      return made;
    delete made;
  }
  return reinterpret_cast<State*>(found);
}

pthread_cond_t* ConditionOf(std::atomic<intptr_t>& place) {
  intptr_t found = place.load(std::memory_order_acquire);
  if (found == 0) {
    auto* made = new pthread_cond_t(PTHREAD_COND_INITIALIZER);
    if (place.compare_exchange_strong(found, reinterpret_cast<intptr_t>(made),
                                      std::memory_order_acq_rel))
      return made;
    delete made;
  }
  return reinterpret_cast<pthread_cond_t*>(found);
}

// Returns false at the deadline.
bool WaitOn(pthread_cond_t* condition, pthread_mutex_t* mutex, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return pthread_cond_wait(condition, mutex) == 0;
  const timespec until = absl::ToTimespec(std::max(deadline, absl::UnixEpoch()));
  return pthread_cond_timedwait(condition, mutex, &until) != ETIMEDOUT;
}

// Returns the state's place in a mutex, which has no other member. CondVar needs it from outside
// the class.
std::atomic<intptr_t>& PlaceOf(absl::Mutex* mutex) {
  return *reinterpret_cast<std::atomic<intptr_t>*>(mutex);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

Mutex::~Mutex() {
  __tsan_mutex_destroy(this, __tsan_mutex_not_static);
  const intptr_t found = mu_.load(std::memory_order_acquire);
  if (found == 0) return;
  auto* state = reinterpret_cast<State*>(found);
  pthread_mutex_lock(&state->mutex);  // the thread that unlocked last has left
  pthread_mutex_unlock(&state->mutex);
  pthread_cond_destroy(&state->unlocked);
  pthread_mutex_destroy(&state->mutex);
  delete state;
}
void Mutex::Lock() { pthread_mutex_lock(&StateOf(mu_)->mutex); }
void Mutex::Unlock() {
  State* state = StateOf(mu_);
  pthread_cond_broadcast(&state->unlocked);
  pthread_mutex_unlock(&state->mutex);
}
bool Mutex::TryLock() { return pthread_mutex_trylock(&StateOf(mu_)->mutex) == 0; }
void Mutex::ReaderLock() { Lock(); }
void Mutex::ReaderUnlock() { Unlock(); }
bool Mutex::ReaderTryLock() { return TryLock(); }
void Mutex::AssertHeld() const {}
void Mutex::AssertReaderHeld() const {}
void Mutex::AssertNotHeld() const {}
void Mutex::EnableInvariantDebugging(void (*)(void*), void*) {}
void Mutex::EnableDebugLog(const char*) {}
void Mutex::ForgetDeadlockInfo() {}
bool Mutex::AwaitWithDeadline(const Condition& condition, absl::Time deadline) {
  State* state = StateOf(mu_);
  if (condition.Eval()) return true;
  pthread_cond_broadcast(&state->unlocked);
  while (!condition.Eval()) {
    if (!WaitOn(&state->unlocked, &state->mutex, deadline)) return condition.Eval();
  }
  return true;
}
void Mutex::Await(const Condition& condition) { AwaitWithDeadline(condition, InfiniteFuture()); }
bool Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  return AwaitWithDeadline(condition, Now() + timeout);
}
void Mutex::LockWhen(const Condition& condition) {
  Lock();
  Await(condition);
}
void Mutex::ReaderLockWhen(const Condition& condition) { LockWhen(condition); }
bool Mutex::LockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  Lock();
  return AwaitWithDeadline(condition, deadline);
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  return LockWhenWithDeadline(condition, Now() + timeout);
}
bool Mutex::ReaderLockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  return LockWhenWithDeadline(condition, deadline);
}
bool Mutex::ReaderLockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  return LockWhenWithTimeout(condition, timeout);
}

CondVar::~CondVar() {
  const intptr_t found = cv_.load(std::memory_order_acquire);
  if (found != 0) delete reinterpret_cast<pthread_cond_t*>(found);
}
bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  State* state = StateOf(PlaceOf(mutex));
  pthread_cond_broadcast(&state->unlocked);
  return !WaitOn(ConditionOf(cv_), &state->mutex, deadline);  // true at the deadline, as absl's
}
void CondVar::Wait(Mutex* mutex) { WaitWithDeadline(mutex, InfiniteFuture()); }
bool CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  return WaitWithDeadline(mutex, Now() + timeout);
}
void CondVar::Signal() { pthread_cond_signal(ConditionOf(cv_)); }
void CondVar::SignalAll() { pthread_cond_broadcast(ConditionOf(cv_)); }
void CondVar::EnableDebugLog(const char*) {}

Notification::~Notification() { MutexLock lock(&mutex_); }
void Notification::Notify() {
  MutexLock lock(&mutex_);
  notified_yet_.store(true, std::memory_order_release);
}
bool Notification::WaitForNotificationWithDeadline(absl::Time deadline) const {
  MutexLock lock(&mutex_);
  const auto notified = [this] { return HasBeenNotified(); };
  return mutex_.AwaitWithDeadline(Condition(&notified), deadline);
}
void Notification::WaitForNotification() const {
  WaitForNotificationWithDeadline(InfiniteFuture());
}
bool Notification::WaitForNotificationWithTimeout(absl::Duration timeout) const {
  return WaitForNotificationWithDeadline(Now() + timeout);
}

ABSL_NAMESPACE_END
}  // namespace absl
