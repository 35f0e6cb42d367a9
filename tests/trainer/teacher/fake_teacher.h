// A taopd.v1.Teacher on a real socket, whose answers a test programs. Wrong and slow on demand.
#pragma once

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "trainer/teacher/network_teacher_client.h"

namespace taopd::testing {

// One Score call, to be finished once, on any thread.
struct FakeCall {
  const v1::ScoreRequest* request;
  v1::ScoreResponse* reply;
  grpc::CallbackServerContext* context;
  std::function<void(grpc::Status)> finish;
};

// The request's right answer, of example_scores.h.
v1::ScoreResponse RightReply(const v1::ScoreRequest& request, const TeacherInfo& info);

class FakeTeacher final : public v1::Teacher::CallbackService {
 public:
  using Handler = std::function<void(FakeCall)>;

  FakeTeacher();  // right answers for ExampleInfo()
  ~FakeTeacher() override { Stop(); }

  // Port 0: the kernel picks. A stopped teacher may be started again on its port.
  // Null credentials: no encryption.
  void Start(int port = 0, std::shared_ptr<grpc::ServerCredentials> credentials = nullptr);
  // Calls in progress end, as a client sees it, with UNAVAILABLE or CANCELLED.
  void Stop();
  int port() const { return port_; }
  std::string endpoint() const { return "grpc://127.0.0.1:" + std::to_string(port_); }

  void SetHandler(Handler handler);  // null: right answers
  // Handler that keeps every call until TakeHeld.
  void Hold();
  // Waits until `count` calls are held and takes all of them.
  std::vector<FakeCall> TakeHeld(size_t count);
  void AnswerRight(const FakeCall& call);
  int64_t num_calls() const;

  v1::GetTeacherInfoResponse info;  // set before Start

 private:
  grpc::ServerUnaryReactor* GetTeacherInfo(grpc::CallbackServerContext* context,
                                           const v1::GetTeacherInfoRequest* request,
                                           v1::GetTeacherInfoResponse* reply) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* reply) override;

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable absl::Mutex mutex_;
  Handler handler_ ABSL_GUARDED_BY(mutex_);
  std::vector<FakeCall> held_ ABSL_GUARDED_BY(mutex_);
  int64_t num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Options with pauses of milliseconds, for any number of fakes.
TeacherClientOptions FastOptions(const std::vector<const FakeTeacher*>& teachers);

}  // namespace taopd::testing
