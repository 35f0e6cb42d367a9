// The protocols of HTTP without sockets: a model of the fake engine, and what the routes' functions
// make of a body.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "server/http/http_error.h"
#include "server/http/request/request_body.h"
#include "server/http/response/answer.h"
#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

inline std::unique_ptr<const ChatTemplate> MakeChatTemplate(const std::string& source) {
  TokenizerConfig config;
  config.chat_templates["default"] = source;
  auto chat = ChatTemplate::FromConfig(config);
  EXPECT_OK(chat);
  return std::make_unique<const ChatTemplate>(*std::move(chat));
}

// The request that is read from a body of /v1/completions.
template <typename Request>
absl::StatusOr<Request> ReadAs(absl::Status (*read)(JsonFields&, const ServedModel&, Request*),
                               const std::string& body, const ServedModel& model) {
  Request request;
  TAOPD_RETURN_IF_ERROR(ReadBody(
      body, "/v1/completions", [&](JsonFields& fields) { return read(fields, model, &request); }));
  return request;
}

class ProtocolTest : public ::testing::Test {
 protected:
  using Run = absl::StatusOr<Answer> (*)(const std::string&, const Caller&, ServingState&);

  void SetUp() override { state_.SetReady(fake_.model); }

  absl::StatusOr<Answer> Call(Run run, const nlohmann::json& body) {
    Caller caller;
    caller.client = "192.0.2.7";
    caller.is_gone = [this] { return is_gone_.load(); };
    caller.hold_memory = [](ByteBudget::Reservation) {};
    return run(body.dump(), caller, state_);
  }
  // Returns the whole answer.
  nlohmann::json Ask(Run run, const nlohmann::json& body) {
    const absl::StatusOr<Answer> answer = Call(run, body);
    EXPECT_OK(answer);
    return answer.ok() ? nlohmann::json::parse(std::get<std::string>(*answer)) : nlohmann::json();
  }
  HttpError Refused(Run run, const nlohmann::json& body) {
    const absl::StatusOr<Answer> answer = Call(run, body);
    EXPECT_FALSE(answer.ok()) << body << " is accepted";
    return answer.ok() ? HttpError() : ToHttpError(answer.status());
  }
  // Returns the JSON of each event of a stream; the last one is checked and left out. Calls
  // `after_each` when the client has an event.
  std::vector<nlohmann::json> Events(Run run, nlohmann::json body,
                                     const std::function<void()>& after_each = nullptr) {
    body["stream"] = true;
    const absl::StatusOr<Answer> answer = Call(run, body);
    EXPECT_OK(answer);
    if (!answer.ok()) return {};
    std::vector<nlohmann::json> events;
    std::string last;
    std::get<EventStream>(*answer).run([&](std::string_view piece) {
      last = piece;
      EXPECT_TRUE(piece.starts_with("data: ") && piece.ends_with("\n\n")) << piece;
      if (piece != kLastEvent) events.push_back(nlohmann::json::parse(piece.substr(6)));
      if (after_each) after_each();
      return true;
    });
    EXPECT_EQ(last, kLastEvent);
    return events;
  }

  FakeModel fake_ = MakeFakeModel(/*with_tokenizer=*/true);
  ServingState state_{Clock::Real(), absl::Seconds(60)};
  std::atomic<bool> is_gone_{false};
};

}  // namespace taopd::testing
