// What the clients of the soak test do, one act at a time. Each act makes its own connection or
// uses the client's, and checks what comes back; a client is used by one thread.
//
// Requests are drawn from a set small enough that each comes often, and every answer must have the
// bytes of the first answer to the same request, whatever else the server does at that time.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "common/base/random.h"
#include "tests/integration/teacher/teacher_binary_fixture.h"

namespace taopd::testing {

struct SoakCounts {
  int64_t num_acts = 0;
  int64_t num_answers = 0;   // whole and right
  int64_t num_compared = 0;  // of these: with an earlier answer to the same request
  int64_t num_cancels = 0;   // by the client, on purpose
  int64_t num_refused = 0;   // bad requests, refused as they should be
};

// The first answer to each request, as hashes. Thread-safe.
class FirstAnswers {
 public:
  // Whether there was an answer to the request before. Fails the test if it was another one.
  bool Compare(const std::string& request, const std::string& answer);

 private:
  absl::Mutex mutex_;
  std::unordered_map<std::string, size_t> answers_ ABSL_GUARDED_BY(mutex_);
};

class SoakClient {
 public:
  // Both outlive the client.
  SoakClient(const TeacherProcess& teacher, FirstAnswers* answers, uint64_t seed);

  // One act, drawn at random.
  void Act();
  const SoakCounts& counts() const { return counts_; }

 private:
  void Score();
  void ScoreOnAStream();
  void StreamTokens();
  void StreamCompletion();
  void Complete();
  void CompleteMany();
  void Chat();
  void StreamChat();
  void Tokenize();
  void MissADeadline();
  void BreakACompletion();
  void CancelAScore();
  void CancelAStream();
  void AskThroughTheGateway();
  void SendNonsense();
  void SendTooMuch();
  void SendHalfARequest();
  void Reconnect();

  v1::ScoreRequest Sequence(int most_tokens);
  void Count(const std::string& request, const std::string& answer);
  // Posts the body and counts the answer, which must be a success, without what differs from one
  // answer to the next.
  void Ask(const std::string& path, const nlohmann::json& body);

  const TeacherProcess& teacher_;
  FirstAnswers* const first_answers_;
  RandomStream random_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Teacher::Stub> stub_;
  std::unique_ptr<httplib::Client> http_;
  SoakCounts counts_;
};

// The bytes of a fixed score: equal before and after everything else.
std::string FixedScore(v1::Teacher::Stub* stub);

}  // namespace taopd::testing
