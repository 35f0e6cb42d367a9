// A client of the page of a run (trainer/control) that is another process.
#pragma once

#include <httplib.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/process.h"

namespace taopd::testing {

class ControlClient {
 public:
  // Returns the port of the run's page, or 0 before there is one.
  static int PortOf(const Process& trainer) {
    const std::string log = trainer.Output(), key = "control http=127.0.0.1:";
    const size_t at = log.find(key);
    const bool is_whole = at != std::string::npos && log.find('\n', at) != std::string::npos;
    return is_whole ? std::atoi(log.c_str() + at + key.size()) : 0;
  }
  // Waits until there is a page, or the run has ended.
  static int AwaitPort(Process& trainer) {
    EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] {
      return PortOf(trainer) > 0 || !trainer.running();
    })) << trainer.Output();
    return PortOf(trainer);
  }
  explicit ControlClient(int port) : http("127.0.0.1", port) {}

  // Returns an empty object if the run does not answer.
  nlohmann::json Status() {
    const auto reply = http.Get("/status");
    return reply ? nlohmann::json::parse(reply->body) : nlohmann::json::object();
  }
  std::string Phase() { return Status().value("phase", ""); }
  int64_t Step() { return Status().value("step", int64_t{-1}); }
  // Returns the status of the answer, 0 if there is none.
  int Post(const std::string& path) {
    const auto reply = http.Post(path, {{"X-Taopd-Control", "1"}}, "", "text/plain");
    return reply ? reply->status : 0;
  }
  bool Reaches(const std::string& phase) {
    return PollUntil(absl::Seconds(60), [&] { return Phase() == phase; });
  }
  bool PassesStep(int64_t step) {
    return PollUntil(absl::Seconds(60), [&] { return Step() > step; });
  }

  httplib::Client http;
};

}  // namespace taopd::testing
