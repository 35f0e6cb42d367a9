// What the clients of the soak test do, one act at a time. Each act makes its own connection or
// uses the client's, and checks what comes back; a client is used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/random.h"
#include "tests/integration/teacher/teacher_binary_fixture.h"

namespace taopd::testing {

struct SoakCounts {
  int64_t num_acts = 0;
  int64_t num_answers = 0;  // whole and right
  int64_t num_cancels = 0;  // by the client, on purpose
  int64_t num_refused = 0;  // bad requests, refused as they should be
};

class SoakClient {
 public:
  SoakClient(const TeacherProcess& teacher, uint64_t seed);

  // One act, drawn at random.
  void Act();
  const SoakCounts& counts() const { return counts_; }

 private:
  void Score();
  void ScoreOnAStream();
  void StreamTokens();
  void StreamCompletion();
  void BreakACompletion();
  void CancelAScore();
  void CancelAStream();
  void AskThroughTheGateway();
  void SendNonsense();
  void SendHalfARequest();
  void Reconnect();

  v1::ScoreRequest Sequence(int most_tokens);

  const TeacherProcess& teacher_;
  RandomStream random_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Teacher::Stub> stub_;
  std::unique_ptr<httplib::Client> http_;
  SoakCounts counts_;
};

// The bytes of a fixed score: equal before and after everything else.
std::string FixedScore(v1::Teacher::Stub* stub);

}  // namespace taopd::testing
