// A reward server on a real socket, whose answers a test can change.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "tests/support/http_listener.h"
#include "trainer/reward/http_reward.h"

namespace taopd::testing {

// Gives the response "N" the reward N, unless a test answers in its place.
class RewardServer {
 public:
  using Handler = std::function<void(const nlohmann::json& request, httplib::Response&)>;

  explicit RewardServer(Handler handler = Right, std::string path = "/judge")
      : handler_(std::move(handler)), path_(std::move(path)) {
    server_.Post(path_, [this](const httplib::Request& request, httplib::Response& response) {
      ++num_requests;
      {
        absl::MutexLock lock(&mutex_);
        authorization_ = request.get_header_value("Authorization");
      }
      handler_(nlohmann::json::parse(request.body), response);
    });
    listener_.emplace(&server_);
  }
  static void Right(const nlohmann::json& request, httplib::Response& response) {
    nlohmann::json rewards = nlohmann::json::array();
    for (const nlohmann::json& sample : request.at("samples")) {
      const auto text = sample.at("response").get<std::string>();
      rewards.push_back({{"id", sample.at("id")}, {"reward", std::stod(text)}});
    }
    response.set_content(nlohmann::json{{"rewards", rewards}}.dump(), "application/json");
  }
  HttpRewardOptions Options() const {
    HttpRewardOptions options;
    options.url = Concat("http://", listener_->address(), path_);
    options.server = *ParseHttpUrl(options.url);
    options.timeout = absl::Seconds(60);
    options.outage_budget = absl::Seconds(50);
    options.first_pause = absl::Milliseconds(1);
    return options;
  }

  // The Authorization of the latest request.
  std::string authorization() {
    absl::MutexLock lock(&mutex_);
    return authorization_;
  }

  std::atomic<int> num_requests{0};

 private:
  const Handler handler_;
  const std::string path_;
  absl::Mutex mutex_;
  std::string authorization_ ABSL_GUARDED_BY(mutex_);
  httplib::Server server_;
  std::optional<HttpListener> listener_;
};

}  // namespace taopd::testing
