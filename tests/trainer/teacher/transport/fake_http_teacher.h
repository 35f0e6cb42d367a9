// A server with vLLM's or SGLang's API on a real socket, whose scores are those of
// example_scores.h and whose replies a test can change.
#pragma once

#include <absl/synchronization/mutex.h>

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tests/support/http_listener.h"
#include "trainer/teacher/network_teacher_client.h"

namespace taopd::testing {

enum class HttpShape { kVllmPython, kVllmRust, kSglang };

class FakeHttpTeacher {
 public:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  using Reply = std::function<std::string(const nlohmann::json& request)>;

  explicit FakeHttpTeacher(HttpShape shape);

  // "vllm+http://127.0.0.1:port" or the like.
  std::string endpoint() const;
  // The right reply to a request's body.
  nlohmann::ordered_json RightReply(const nlohmann::json& request) const;
  // Answers scoring requests instead of RightReply; null: right replies.
  void SetHandler(Handler handler);
  // Answers scoring requests with texts.
  void SetReply(Reply reply);
  nlohmann::json last_request() const;

  // Settings that a test changes before the first request.
  int64_t max_logprobs = 20;
  std::string api_key;  // required if not empty
  std::string fingerprint = "vllm-1-abc";
  // Lowers the log-probs of a reply, as other weights would, by a function of the number
  // of replies so far. Empty: nothing.
  std::function<float(int num_replies)> lowers_by;

 private:
  void Score(const httplib::Request& request, httplib::Response& response);

  const HttpShape shape_;
  mutable std::atomic<int> num_replies_ = 0;
  mutable absl::Mutex mutex_;
  Handler handler_ ABSL_GUARDED_BY(mutex_);
  nlohmann::json last_request_ ABSL_GUARDED_BY(mutex_);
  httplib::Server server_;
  std::optional<HttpListener> listener_;
};

// Options with pauses of milliseconds.
TeacherClientOptions FastHttpOptions(const FakeHttpTeacher& teacher);

}  // namespace taopd::testing
