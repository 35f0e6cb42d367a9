#include "tests/trainer/teacher/transport/fake_http_teacher.h"

#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;

TeacherScores ScoresFrom(const nlohmann::json& ids, int64_t start, int64_t top_k,
                         float lowered_by) {
  const TeacherRequest request = {.token_ids = ids.get<std::vector<int32_t>>(),
                                  .score_start = start,
                                  .top_k = static_cast<int32_t>(top_k)};
  TeacherScores scores = ExampleScores(request, ExampleInfo());
  for (float& log_prob : scores.log_probs) log_prob -= lowered_by;
  for (float& log_prob : scores.sampled_log_probs) log_prob -= lowered_by;
  return scores;
}

Json VllmPosition(const TeacherScores& scores, int64_t row, int32_t actual, bool is_rust) {
  Json position = Json::object();
  const auto add = [&](int32_t id, double log_prob) {
    if (is_rust) {
      position[Concat("token_id:", id)] = log_prob;
    } else {
      position[std::to_string(id)] = {{"logprob", log_prob}, {"rank", 1}, {"decoded_token", "x"}};
    }
  };
  add(actual, scores.sampled_log_probs[row]);
  for (int64_t j = scores.top_k - 1; j >= 0; --j) {
    const int64_t at = row * scores.top_k + j;
    if (scores.ids[at] != actual) add(scores.ids[at], scores.log_probs[at]);
  }
  return position;
}

}  // namespace

FakeHttpTeacher::FakeHttpTeacher(HttpShape shape) : shape_(shape) {
  server_.Get("/v1/models", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(
        R"({"object":"list","data":[{"id":"example","max_model_len":64},{"id":"other"}]})",
        "application/json");
  });
  const char* path = shape == HttpShape::kSglang ? "/generate" : "/v1/completions";
  server_.Post(path, [this](const httplib::Request& request, httplib::Response& response) {
    Score(request, response);
  });
  listener_.emplace(&server_, 64);
}

std::string FakeHttpTeacher::endpoint() const {
  return Concat(shape_ == HttpShape::kSglang ? "sglang" : "vllm", "+http://", listener_->address());
}

void FakeHttpTeacher::SetHandler(Handler handler) {
  absl::MutexLock lock(&mutex_);
  handler_ = std::move(handler);
}

void FakeHttpTeacher::SetReply(Reply reply) {
  SetHandler(
      [reply = std::move(reply)](const httplib::Request& request, httplib::Response& response) {
        response.set_content(reply(nlohmann::json::parse(request.body)), "application/json");
      });
}

nlohmann::json FakeHttpTeacher::last_request() const {
  absl::MutexLock lock(&mutex_);
  return last_request_;
}

void FakeHttpTeacher::Score(const httplib::Request& request, httplib::Response& response) {
  const auto body = nlohmann::json::parse(request.body);
  Handler handler;
  {
    absl::MutexLock lock(&mutex_);
    last_request_ = body;
    handler = handler_;
  }
  if (!api_key.empty() && request.get_header_value("Authorization") != "Bearer " + api_key) {
    response.status = 401;
    response.set_content(R"({"error":"Unauthorized"})", "application/json");
    return;
  }
  const bool is_probe = body.value("prompt", body.value("input_ids", nlohmann::json())).size() == 2;
  if (handler && !is_probe) return handler(request, response);
  if (shape_ != HttpShape::kSglang && body.at("prompt_logprobs").get<int64_t>() > max_logprobs) {
    response.status = 400;
    response.set_content(
        Concat(R"({"error":{"message":"Requested prompt logprobs of )", body.at("prompt_logprobs"),
               ", which is greater than max allowed: ", max_logprobs, R"(","code":400}})"),
        "application/json");
    return;
  }
  response.set_content(RightReply(body).dump(), "application/json");
}

Json FakeHttpTeacher::RightReply(const nlohmann::json& request) const {
  const float lowered_by = lowers_by ? lowers_by(num_replies_++) : 0.0f;
  if (shape_ == HttpShape::kSglang) {
    const nlohmann::json& ids = request.at("input_ids");
    const int64_t start = request.at("logprob_start_len").get<int64_t>() + 1;
    const int64_t top_k = request.at("top_logprobs_num").get<int64_t>();
    const TeacherScores scores = ScoresFrom(ids, start, top_k, lowered_by);
    Json actual = {Json::array({nullptr, ids[start - 1], nullptr})}, top = {nullptr};
    for (size_t r = 0; r < scores.sampled_log_probs.size(); ++r) {
      actual.push_back(Json::array({scores.sampled_log_probs[r], ids[start + r], nullptr}));
      Json row = Json::array();
      for (int64_t j = 0; j < top_k; ++j) {
        row.push_back(
            Json::array({scores.log_probs[r * top_k + j], scores.ids[r * top_k + j], nullptr}));
      }
      top.push_back(row);
    }
    return {{"text", ""},
            {"meta_info",
             {{"weight_version", "v7"},
              {"input_token_logprobs", actual},
              {"input_top_logprobs", top}}}};
  }
  const nlohmann::json& ids = request.at("prompt");
  const int64_t top_k = request.at("prompt_logprobs").get<int64_t>();
  const TeacherScores scores = ScoresFrom(ids, 1, top_k, lowered_by);
  Json positions = {nullptr};
  for (size_t r = 0; r < scores.sampled_log_probs.size(); ++r) {
    positions.push_back(VllmPosition(scores, static_cast<int64_t>(r), ids[r + 1].get<int32_t>(),
                                     shape_ == HttpShape::kVllmRust));
  }
  Json reply = {{"id", "cmpl-1"},
                {"choices", {{{"index", 0}, {"text", "x"}, {"prompt_logprobs", positions}}}}};
  if (!fingerprint.empty()) reply["system_fingerprint"] = fingerprint;
  return reply;
}

TeacherClientOptions FastHttpOptions(const FakeHttpTeacher& teacher) {
  TeacherClientOptions options = FastOptions({});
  options.endpoints = {teacher.endpoint()};
  options.probe_top_k = 8;
  return options;
}

}  // namespace taopd::testing
