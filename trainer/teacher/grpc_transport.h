// Attempts over gRPC: one channel per endpoint, one unary call per sequence. Unary calls give each
// sequence a deadline and a choice of endpoint of its own; a stream would pin them to one.
//
// Calls end on threads of this object, not on gRPC's own: those may be the last to let go of a
// channel, and would then wait for themselves (github.com/grpc/grpc/issues/37858).
#pragma once

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "trainer/teacher/retrying_client.h"

namespace taopd {

class GrpcScoreTransport final : public ScoreTransport {
 public:
  // `targets` as gRPC names them; see endpoint.h.
  GrpcScoreTransport(const std::vector<std::string>& targets, const GrpcTeacherOptions& options);

  ~GrpcScoreTransport() override;  // REQUIRES: every call has ended

  absl::Status Check(const TeacherRequest& request, const TeacherInfo& info) const override;
  void Start(size_t endpoint, const TeacherRequest& request, const TeacherInfo& info,
             absl::Duration timeout, std::function<void(Result)> done) override;
  void CancelAll() override;

  // GetTeacherInfo of every endpoint at once; waits for all of them, at most about `timeout`.
  std::vector<absl::StatusOr<TeacherInfo>> AskAll(absl::Duration timeout);

 private:
  struct Call;
  void RunCompletions();

  static constexpr int kNumThreads = 2;  // they verify the replies and run `done`

  const int64_t max_message_bytes_;
  std::vector<std::unique_ptr<v1::Teacher::Stub>> stubs_;
  absl::Mutex mutex_;
  std::map<Call*, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::CompletionQueue completions_;
  std::vector<std::thread> threads_;
};

// The contents of a reply, verified (verify_scores.h).
absl::StatusOr<TeacherScores> ScoresOfReply(const v1::ScoreResponse& reply,
                                            const TeacherRequest& request, const TeacherInfo& info);
// DATA_LOSS for nonsense, FAILED_PRECONDITION for a protocol version that is not known.
absl::StatusOr<TeacherInfo> InfoOfReply(const v1::GetTeacherInfoResponse& reply);

}  // namespace taopd
