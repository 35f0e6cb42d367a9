#include "tests/bench/teacher/scorers.h"

#include <absl/strings/escaping.h>
#include <absl/synchronization/notification.h>
#include <grpcpp/grpcpp.h>
#include <httplib.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/check.h"
#include "common/wire/teacher_protocol.h"
#include "proto/taopd/v1/teacher.grpc.pb.h"

namespace taopd::bench {
namespace {

class EngineScorer final : public Scorer {
 public:
  explicit EngineScorer(InferenceEngine* engine) : engine_(engine) {}
  Scored Score(const std::vector<int32_t>& token_ids, int32_t top_k) override {
    InferenceRequest request;
    request.token_ids = token_ids;
    request.score.emplace().top_k = top_k;
    absl::Notification done;
    Scored scored;
    engine_->Submit(std::move(request), [&](absl::StatusOr<InferenceResult> result) {
      TAOPD_CHECK(result.ok());
      const std::vector<float>& all = result->score->log_probs;
      scored.last_log_probs.assign(all.end() - top_k, all.end());
      done.Notify();
    });
    done.WaitForNotification();
    return scored;
  }

 private:
  InferenceEngine* const engine_;
};

class GrpcScorer final : public Scorer {
 public:
  explicit GrpcScorer(int port) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection for each scorer
    stub_ = v1::Teacher::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(), arguments));
  }
  Scored Score(const std::vector<int32_t>& token_ids, int32_t top_k) override {
    v1::ScoreRequest request;
    request.mutable_token_ids()->Add(token_ids.begin(), token_ids.end());
    request.set_score_start(1);
    request.set_top_k(static_cast<uint32_t>(top_k));
    v1::ScoreResponse response;
    grpc::ClientContext context;
    TAOPD_CHECK(stub_->Score(&context, request, &response).ok());
    const auto& all = response.logprobs();
    return {{all.end() - top_k, all.end()}, static_cast<int64_t>(response.ByteSizeLong())};
  }

 private:
  std::unique_ptr<v1::Teacher::Stub> stub_;
};

class HttpScorer final : public Scorer {
 public:
  HttpScorer(int port, bool compact) : client_("127.0.0.1", port), compact_(compact) {
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
    client_.set_read_timeout(600);
  }
  Scored Score(const std::vector<int32_t>& token_ids, int32_t top_k) override {
    nlohmann::json body = {{"prompt", token_ids}, {"max_tokens", 1}, {"prompt_logprobs", top_k}};
    if (compact_) body["prompt_logprobs_format"] = "base64";
    const auto answer = client_.Post("/v1/completions", body.dump(), "application/json");
    TAOPD_CHECK(answer && answer->status == 200);
    const auto reply = nlohmann::json::parse(answer->body);
    Scored scored;
    scored.answer_bytes = static_cast<int64_t>(answer->body.size());
    const auto& log_probs = reply["choices"][0]["prompt_logprobs"];
    if (compact_) {
      std::string bytes;
      TAOPD_CHECK(absl::Base64Unescape(log_probs["logprobs"].get<std::string>(), &bytes));
      scored.last_log_probs.resize(static_cast<size_t>(top_k));
      const size_t size = sizeof(float) * static_cast<size_t>(top_k);
      std::memcpy(scored.last_log_probs.data(), bytes.data() + bytes.size() - size, size);
      return scored;
    }
    // An object whose first entry is the token itself, which may be one of the k or an extra entry.
    for (const auto& [id, entry] : log_probs.back().items()) {
      if (entry["rank"].get<int64_t>() <= top_k)
        scored.last_log_probs.push_back(entry["logprob"].get<float>());
    }
    std::sort(scored.last_log_probs.begin(), scored.last_log_probs.end(), std::greater<>());
    return scored;
  }

 private:
  httplib::Client client_;
  const bool compact_;
};

}  // namespace

std::unique_ptr<Scorer> MakeEngineScorer(InferenceEngine* engine) {
  return std::make_unique<EngineScorer>(engine);
}
std::unique_ptr<Scorer> MakeGrpcScorer(int port) { return std::make_unique<GrpcScorer>(port); }
std::unique_ptr<Scorer> MakeHttpScorer(int port, bool compact) {
  return std::make_unique<HttpScorer>(port, compact);
}

}  // namespace taopd::bench
