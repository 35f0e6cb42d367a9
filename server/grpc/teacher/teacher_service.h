// The service taopd.v1.Teacher on gRPC's callback API. Handlers never block: one thread of the
// service turns the engine's results into answers. gRPC calls the handlers on any of its threads.
#pragma once

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <unordered_map>

#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "server/grpc/calls/call_services.h"
#include "server/grpc/teacher/score_stream.h"

namespace taopd {

// The methods, which get and return the bytes of messages (calls/message_bytes.h).
using TeacherMethods = v1::Teacher::WithRawCallbackMethod_GetTeacherInfo<
    v1::Teacher::WithRawCallbackMethod_Score<v1::Teacher::WithRawCallbackMethod_ScoreStream<
        v1::Teacher::WithRawCallbackMethod_Generate<v1::Teacher::Service>>>>;

class TeacherService final : public TeacherMethods {
 public:
  // `state`, `metrics` and `keys`, which may be null, must outlive the service, and the service
  // must outlive the gRPC server.
  TeacherService(ServingState* state, ServerMetrics* metrics, const ApiKeys* keys)
      : services_{state, metrics, &tracker_, keys, &delivery_} {}

  UnaryCall* GetTeacherInfo(CallContext* context, const CallBytes* request,
                            CallBytes* answer) override;
  UnaryCall* Score(CallContext* context, const CallBytes* request, CallBytes* answer) override;
  BidiCall* ScoreStream(CallContext* context) override;
  StreamedCall* Generate(CallContext* context, const CallBytes* request) override;

  // Ends open streams when they have answered every accepted request, and new ones immediately. Any
  // thread may call.
  void DrainStreams();
  // Counts the calls that end after their handler has returned, except those of reflection, which
  // end when their client does.
  CallTracker& tracker() { return tracker_; }
  // For the other services of the same server.
  const CallServices& services() const { return services_; }

 private:
  void ForgetStream(taopd::ScoreStream* stream);

  CallTracker tracker_;
  const CallServices services_;

  absl::Mutex mutex_;
  std::unordered_map<taopd::ScoreStream*, std::shared_ptr<taopd::ScoreStream>> streams_
      ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;

  WorkerPool delivery_{/*max_threads=*/1};
};

}  // namespace taopd
