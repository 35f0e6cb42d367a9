#include "tests/trainer/rollout/vllm/fake_vllm.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "common/base/status.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::json;

constexpr int32_t kFakeVocabulary = 275;  // that of the recorded replies

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Json ErrorBody(int code, const std::string& message) {
  return {{"error", {{"message", message}, {"type", "x"}, {"param", nullptr}, {"code", code}}}};
}

}  // namespace

float FakeLogProb(const std::string& weights, const std::string& head, int32_t token) {
  const size_t hash = std::hash<std::string>()(Concat(weights, "/", head, "/", token));
  return -0.5f - static_cast<float>(hash % 1000) / 250.0f;
}

WeightProbe FakeProbe(const std::string& weights) {
  WeightProbe probe = {.token_ids = {1, 5, 9, 200, 17}};
  for (size_t i = 1; i < probe.token_ids.size(); ++i) {
    probe.log_probs.push_back(FakeLogProb(weights, weights, probe.token_ids[i]));
  }
  return probe;
}

FakeVllm::FakeVllm(Json replies) : server_info(replies.at("server_info")), replies_(replies) {
  const auto answer = [this](const httplib::Request& request, httplib::Response& response) {
    Answer(request, response);
  };
  server_.Get(".*", answer);
  server_.Post(".*", answer);
  listener_.emplace(&server_);
}

FakeVllm::State FakeVllm::state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

void FakeVllm::SetHandler(const std::string& path, Handler handler) {
  absl::MutexLock lock(&mutex_);
  handlers_[path] = std::move(handler);
}

void FakeVllm::Answer(const httplib::Request& request, httplib::Response& response) {
  const Json body = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  Handler handler;
  {
    absl::MutexLock lock(&mutex_);
    state_.calls.push_back(request.path == "/collective_rpc"
                               ? Concat(request.path, " ", body.at("method").get<std::string>())
                               : request.path);
    state_.bodies[request.path] = body;
    if (const auto found = handlers_.find(request.path); found != handlers_.end())
      handler = found->second;
  }
  if (handler) return handler(request, response);
  const bool is_inference = request.path.starts_with("/inference");
  int status = 200;
  Json reply;
  if ((is_inference || request.path.starts_with("/v1")) && !api_key.empty() &&
      request.get_header_value("Authorization") != "Bearer " + api_key) {
    status = 401;
    reply = {{"error", "Unauthorized"}};
  } else if (is_inference && is_scale_out) {
    return Generate(body, response);
  } else if (is_inference) {
    status = 403;
    reply = ErrorBody(403, "the route is disabled");
  } else if (request.path == "/v1/models") {
    reply = {{"data", {{{"id", "tiny"}, {"max_model_len", 256}}}}};
  } else if (is_dev_mode) {
    reply = AnswerDevRoute(request, body, &status);
  }
  if (reply.is_null()) {
    status = 404;
    reply = Json::parse(replies_.at("unknown_route").get<std::string>());
  }
  response.status = status;
  response.set_content(reply.dump(), "application/json");
}

Json FakeVllm::AnswerDevRoute(const httplib::Request& request, const Json& body, int* status) {
  absl::MutexLock lock(&mutex_);
  if (request.path == "/server_info") return server_info;
  if (request.path == "/weight_info") return {{"weight_version", state_.version}};
  if (request.path == "/reset_prefix_cache") return replies_.at("reset");
  if (request.path == "/update_weight_version") {
    state_.version = body.at("new_version").get<std::string>();
    return replies_.at("version_set");
  }
  if (request.path == "/pause" || request.path == "/resume") {
    state_.is_paused = request.path == "/pause";
    return replies_.at(state_.is_paused ? "paused" : "resumed");
  }
  if (request.path != "/collective_rpc") return nullptr;
  if (body.at("method") == "update_config") {
    server_info["vllm_config"]["load_config"]["load_format"] = "auto";
    return replies_.at("reloaded");
  }
  state_.loaded_dir = body.at("kwargs").at("weights_path").get<std::string>();
  state_.has_loaded_head = std::filesystem::exists(state_.loaded_dir + "/lm_head.safetensors");
  const bool is_dummy = server_info["vllm_config"]["load_config"]["load_format"] == "dummy";
  const std::string weights = ReadText(state_.loaded_dir + "/weights");
  if (weights.empty() || is_dummy) {
    *status = 500;
    return ErrorBody(500, "Call to collective_rpc method failed: Worker failed with error");
  }
  if (head_weights_.empty()) head_weights_ = start_weights;
  body_weights_ = weights;
  if (!head_stays) head_weights_ = weights;
  return replies_.at("reloaded");
}

// The recorded reply, with other tokens and versions.
void FakeVllm::Generate(const Json& body, httplib::Response& response) {
  const Json& sampling = body.at("sampling_params");
  std::string version, weights, head;
  {
    absl::MutexLock lock(&mutex_);
    version = state_.version;
    weights = body_weights_.empty() ? start_weights : body_weights_;
    head = head_weights_.empty() ? start_weights : head_weights_;
  }
  for (const Json& id : body.at("token_ids")) {
    if (id < kFakeVocabulary) continue;
    response.status = 400;
    return response.set_content(replies_.at("beyond_vocabulary").get<std::string>(),
                                "application/json");
  }
  if (sampling.contains("prompt_logprobs")) {
    Json reply = replies_.at("probe");
    reply["prompt_logprobs"] = Json::array({nullptr});
    for (size_t i = 1; i < body.at("token_ids").size(); ++i) {
      const auto id = body.at("token_ids")[i].get<int32_t>();
      reply["prompt_logprobs"].push_back(
          {{std::to_string(id),
            {{"logprob", FakeLogProb(weights, head, id)}, {"rank", 1}, {"decoded_token", "x"}}}});
    }
    return response.set_content(reply.dump(), "application/json");
  }
  const bool is_long = sampling.at("max_tokens") == 4;
  Json reply = replies_.at(is_long ? "length" : "stop");
  Json& choice = reply["choices"][0];
  choice["weight_versions"][0]["version"] = version;
  response.set_content(reply.dump(), "application/json");
}

}  // namespace taopd::testing
