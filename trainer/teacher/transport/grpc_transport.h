// Attempts over gRPC: one channel per endpoint, one unary call per sequence. With unary calls each
// sequence has its own deadline and its own endpoint; a stream would bind many sequences to one
// endpoint.
//
// Threads: any thread may call it. Calls end on threads of this object, not on gRPC's own: a thread
// of gRPC that released the last reference to a channel would wait for itself
// (github.com/grpc/grpc/issues/37858).
#pragma once

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "trainer/net/grpc_channel.h"
#include "trainer/teacher/network_teacher_client.h"
#include "trainer/teacher/score_transport.h"
#include "trainer/teacher/transport/teacher_protocols.h"

namespace taopd {

class GrpcScoreTransport final : public ScoreTransport {
 public:
  // All `endpoints` must speak gRPC; `tls` is for those that use TLS.
  GrpcScoreTransport(const std::vector<TeacherEndpoint>& endpoints, const TlsPem& tls,
                     const TeacherClientOptions& options);

  // REQUIRES: every attempt has ended.
  ~GrpcScoreTransport() override;

  absl::Status Check(const TeacherRequest& request, const TeacherInfo& info) const override;
  void Start(size_t endpoint, const TeacherRequest& request, const TeacherInfo& info,
             absl::Duration timeout, std::function<void(Result)> done) override;
  void CancelAll() override;
  absl::StatusOr<TeacherInfo> Ask(size_t endpoint, absl::Duration timeout) override;

 private:
  struct Call;
  void RunCompletions();

  // The number of threads that verify replies and run `done`.
  static constexpr int kNumThreads = 2;

  const int64_t max_message_bytes_;
  const std::string api_key_;
  std::vector<std::unique_ptr<v1::Teacher::Stub>> stubs_;
  absl::Mutex mutex_;
  std::map<Call*, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::CompletionQueue completions_;
  std::vector<std::thread> threads_;
};

// Returns the contents of a reply, or DATA_LOSS unless they pass VerifyTeacherScores
// (verify_scores.h).
absl::StatusOr<TeacherScores> ScoresOfReply(const v1::ScoreResponse& reply,
                                            const TeacherRequest& request, const TeacherInfo& info);
// Returns the contents of a reply, FAILED_PRECONDITION if its protocol version is unknown, or
// DATA_LOSS if it has no revision or an impossible vocabulary size.
absl::StatusOr<TeacherInfo> InfoOfReply(const v1::GetTeacherInfoResponse& reply);

}  // namespace taopd
