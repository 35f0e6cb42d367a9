// An HTTP proxy in front of a real teacher that misbehaves on demand.
#pragma once

#include <absl/synchronization/notification.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tests/support/http_listener.h"

namespace taopd::testing {

enum class Misbehavior { kNone, kSlow, kGarbage, kLie, kAnotherRevision };

class MisbehavingProxy {
 public:
  explicit MisbehavingProxy(int teacher_port) : teacher_port_(teacher_port) {
    const auto forward = [this](const httplib::Request& request, httplib::Response& response) {
      Forward(request, &response);
    };
    server_.Get("/v1/models", forward);
    server_.Post("/v1/completions", forward);
    listener_.emplace(&server_, 128);
  }
  ~MisbehavingProxy() { over_.Notify(); }

  std::string endpoint() const { return "vllm+http://" + listener_->address(); }
  // Misbehaves from the `after`-th scoring request on.
  void Misbehave(Misbehavior how, int after) {
    how_ = how;
    num_left_ = after;
  }
  int num_misbehaved() const { return num_misbehaved_; }

 private:
  void Forward(const httplib::Request& request, httplib::Response* response) {
    httplib::Client teacher("127.0.0.1", teacher_port_);
    teacher.set_tcp_nodelay(true);
    const auto reply = request.method == "GET"
                           ? teacher.Get(request.path)
                           : teacher.Post(request.path, request.body, "application/json");
    if (!reply) {
      response->status = 502;
      return;
    }
    response->status = reply->status;
    const bool is_good = request.method == "GET" || how_ == Misbehavior::kNone || --num_left_ >= 0;
    response->set_content(is_good ? reply->body : Spoil(reply->body), "application/json");
  }

  std::string Spoil(const std::string& body) {
    ++num_misbehaved_;
    if (how_ == Misbehavior::kGarbage) return "\x16\x03\x01{" + body.substr(0, body.size() / 2);
    if (how_ == Misbehavior::kSlow) over_.WaitForNotification();
    auto reply = nlohmann::ordered_json::parse(body);
    if (how_ == Misbehavior::kAnotherRevision) reply["system_fingerprint"] = "another";
    if (how_ == Misbehavior::kLie) {
      for (auto& position : reply["choices"][0]["prompt_logprobs"]) {
        if (position.is_null()) continue;
        for (auto& entry : position) entry["logprob"] = entry["logprob"].get<double>() / 2;
      }
    }
    return reply.dump();
  }

  const int teacher_port_;
  absl::Notification over_;
  std::atomic<Misbehavior> how_ = Misbehavior::kNone;
  std::atomic<int> num_left_ = 0;
  std::atomic<int> num_misbehaved_ = 0;
  httplib::Server server_;
  std::optional<HttpListener> listener_;
};

}  // namespace taopd::testing
