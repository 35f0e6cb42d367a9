// The clients of the soak test and their acts. Each act makes its own connection or uses the
// client's, and checks the answers. A client is used by one thread.
//
// Requests are drawn from a small set, so that each occurs often. Every answer must have the same
// bytes as the first answer to the same request, whatever else the server does meanwhile.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "common/base/random.h"
#include "tests/integration/teacher/teacher_binary_fixture.h"

namespace taopd::testing {

// Holds hashes of the first answer to each request. Thread-safe.
class FirstAnswers {
 public:
  // Fails the test if there is an earlier answer to the request that differs.
  void Compare(const std::string& request, const std::string& answer);
  size_t num_new() const {
    absl::MutexLock lock(&mutex_);
    return answers_.size();
  }
  // Returns the number of answers to requests that had an earlier one.
  size_t num_compared() const {
    absl::MutexLock lock(&mutex_);
    return num_compared_;
  }

 private:
  mutable absl::Mutex mutex_;
  size_t num_compared_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::string, size_t> answers_ ABSL_GUARDED_BY(mutex_);
};

class SoakClient {
 public:
  // Both must outlive the client.
  SoakClient(const TeacherProcess& teacher, FirstAnswers* answers, uint64_t seed);

  // Performs one act, drawn at random.
  void Act();

 private:
  void Score();
  void ScoreOnAStream();
  void StreamTokens();
  void StreamCompletion();
  void Complete();
  void CompleteMany();
  void Chat();
  void Tokenize();
  void MissADeadline();
  void BreakACompletion();
  void CancelAScore();
  void CancelAStream();
  void AskThroughTheGateway();
  void SendWhatIsRefused();
  void SendHalfARequest();
  void Reconnect();

  v1::ScoreRequest Sequence(int most_tokens);
  // Posts the body and compares the answer, which must be a success, without the parts that always
  // differ.
  void Ask(const std::string& path, const nlohmann::json& body);

  const TeacherProcess& teacher_;
  FirstAnswers* const first_answers_;
  RandomStream random_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Teacher::Stub> stub_;
  std::unique_ptr<httplib::Client> http_;
  int num_acts_ = 0;
};

// Returns the bytes of a fixed score, which must be equal before and after everything else.
std::string FixedScore(v1::Teacher::Stub* stub);

}  // namespace taopd::testing
