// Makes gRPC's guarantees about the order of threads visible to ThreadSanitizer: everything that a
// thread does before it starts operations of a call (StartRead, StartWrite, Finish) happens before
// the reaction to them. In the library this relies on atomics that are not instrumented. Without
// this file, a reaction that frees a call would seem to race with the engine's thread that finished
// it.
//
// Each batch of operations, identified by its tag, is ordered by itself. So an access to a call
// after a thread has started a batch is still reported as a race with the reaction.
//
// OnCancel comes after the handler, and OnDone, which frees the call, after all other reactions;
// each has a counter. ThreadSanitizer does not see the counting in the library's own code, so the
// counters are read here once more. (Only the library counts the end of OnCancel: see ReactionOrder
// in server/grpc.)
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstddef>

namespace {

// grpc_completion_queue_functor of the C core: a tag of the callback API begins with it.
struct Functor {
  void (*run)(Functor*, int);
};
using Run = void (*)(Functor*, int);
using StartBatch = int (*)(void* call, const void* ops, size_t num_ops, void* tag, void* reserved);

// Return the functions that run the reactions, which are inline in gRPC's headers, or null in a
// program without them.
Run SuccessRun() {
  static const Run run = reinterpret_cast<Run>(::dlsym(
      RTLD_DEFAULT,
      "_ZN4grpc8internal22CallbackWithSuccessTag9StaticRunEP29grpc_completion_queue_functori"));
  return run;
}
Run StatusRun() {
  static const Run run = reinterpret_cast<Run>(::dlsym(
      RTLD_DEFAULT,
      "_ZN4grpc8internal21CallbackWithStatusTag9StaticRunEP29grpc_completion_queue_functori"));
  return run;
}
void OrderedSuccessRun(Functor* tag, int ok) {
  __tsan_acquire(tag);
  SuccessRun()(tag, ok);
}
void OrderedStatusRun(Functor* tag, int ok) {
  __tsan_acquire(tag);
  StatusRun()(tag, ok);
}

}  // namespace

extern "C" int grpc_call_start_batch(void* call, const void* ops, size_t num_ops, void* tag,
                                     void* reserved) {
  static const auto next =
      reinterpret_cast<StartBatch>(::dlsym(RTLD_NEXT, "grpc_call_start_batch"));
  // Other tags (of a completion queue that a thread reads) begin with a pointer to a table of
  // virtual functions.
  if (auto* const functor = static_cast<Functor*>(tag); functor != nullptr) {
    if (functor->run == SuccessRun()) functor->run = &OrderedSuccessRun;
    if (functor->run == StatusRun()) functor->run = &OrderedStatusRun;
    __tsan_release(tag);
  }
  return next(call, ops, num_ops, tag, reserved);
}

// Offsets in grpc::internal::ServerCallbackCall of gRPC 1.51: after the pointer to the virtual
// functions come the counter of the events before OnCancel (one of which is the handler's end) and
// that of the reactions before OnDone.
static constexpr size_t kCancelCounter = sizeof(void*), kDoneCounter = kCancelCounter + sizeof(int);

static void ReadCounter(char* call, size_t offset) {
  (void)__atomic_load_n(reinterpret_cast<int*>(call + offset), __ATOMIC_ACQUIRE);
}

extern "C" void CallOnCancel(char* call, void* reactor) asm(
    "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE");
void CallOnCancel(char* call, void* reactor) {
  static const auto next = reinterpret_cast<void (*)(char*, void*)>(::dlsym(
      RTLD_NEXT, "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE"));
  ReadCounter(call, kCancelCounter);
  next(call, reactor);
}

extern "C" void ScheduleOnDone(char* call, bool inline_on_done) asm(
    "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
void ScheduleOnDone(char* call, bool inline_on_done) {
  static const auto next = reinterpret_cast<void (*)(char*, bool)>(
      ::dlsym(RTLD_NEXT, "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb"));
  ReadCounter(call, kDoneCounter);
  next(call, inline_on_done);
}
