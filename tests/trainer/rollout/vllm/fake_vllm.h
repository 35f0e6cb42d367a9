// A server on a real socket with the routes of vLLM that rollouts use, which answers as vLLM 0.32
// did (golden/replies.json), and fails as a test asks.
//
// Its model is the text of the file "weights" in the directory that it has loaded: log-probs are a
// function of that text and of the token.
#pragma once

#include <absl/synchronization/mutex.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/http_listener.h"
#include "trainer/rollout/endpoints/rollout_worker.h"

namespace taopd::testing {

class FakeVllm {
 public:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

  // `replies` is golden/replies.json.
  explicit FakeVllm(nlohmann::json replies);

  int port() const { return listener_->port(); }
  struct State {
    std::vector<std::string> calls;  // the path, and of /collective_rpc also the method
    std::map<std::string, nlohmann::json> bodies;  // of the last request for each path
    std::string version = "default";
    std::string loaded_dir;
    bool has_loaded_head = false;  // whether loaded_dir had a file for the head
    bool is_paused = false;
  };
  State state() const;

  // Answers requests for `path` instead of the right answer. It runs before anything else.
  void SetHandler(const std::string& path, Handler handler);

  // Settings that a test changes before the first request.
  nlohmann::json server_info;
  bool is_dev_mode = true;
  bool is_scale_out = true;
  std::string api_key;  // required for /v1 and /inference, as vLLM does
  // The fault of vLLM on a CPU: the head keeps what it had at the start.
  bool head_stays = false;
  std::string start_weights = "start";

 private:
  void Answer(const httplib::Request& request, httplib::Response& response);
  void Generate(const nlohmann::json& body, httplib::Response& response);
  // Returns an empty object if there is no such route.
  nlohmann::json AnswerDevRoute(const httplib::Request& request, const nlohmann::json& body,
                                int* status);

  const nlohmann::json replies_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Handler> handlers_ ABSL_GUARDED_BY(mutex_);
  State state_ ABSL_GUARDED_BY(mutex_);
  std::string body_weights_ ABSL_GUARDED_BY(mutex_);
  std::string head_weights_ ABSL_GUARDED_BY(mutex_);
  httplib::Server server_;
  std::optional<HttpListener> listener_;
};

// The log-prob of a token that the fake computes with such weights and such a head.
float FakeLogProb(const std::string& weights, const std::string& head, int32_t token);
// Returns the probe of a student with these weights.
WeightProbe FakeProbe(const std::string& weights);

}  // namespace taopd::testing
