#include "common/engine/request_validation.h"

#include <limits>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

EngineLimits Limits() {
  return {.vocab_size = 100,
          .max_model_len = 16,
          .max_logprobs = 8,
          .max_candidates = 2,
          .max_dense_vocab_size = 99,
          .max_num_seqs = 4,
          .max_queued_tokens = 1000};
}

InferenceRequest Request() {
  InferenceRequest request = {
      .token_ids = {1, 2, 3, 99}, .score = ScoreParams(), .sampling = SamplingParams()};
  request.sampling->max_new_tokens = 12;
  return request;
}

// Changes the valid request and expects a refusal that names all parts.
template <typename Change>
void ExpectRefused(Change change, std::initializer_list<const char*> parts) {
  InferenceRequest request = Request();
  change(request);
  const absl::Status status = ValidateRequest(request, Limits());
  EXPECT_EQ(status.code(), kInvalidArgument) << status.ToString();
  for (const char* part : parts) EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(ValidateRequest, AcceptsValuesAtTheirLimits) {
  InferenceRequest request = Request();
  EXPECT_OK(ValidateRequest(request, Limits()));
  request.score->start = 3;
  request.score->top_k = 8;
  request.score->num_candidates = 2;
  request.score->candidate_ids = {0, 99};
  request.score->temperature = kMinScoreTemperature;
  request.sampling->temperature = 0.0f;
  request.sampling->top_k = 1 << 30;  // keeps the whole vocabulary
  request.sampling->num_log_probs = 8;
  EXPECT_OK(ValidateRequest(request, Limits()));
  request.sampling.reset();
  request.token_ids.resize(16);
  request.score->start = 15;
  EXPECT_OK(ValidateRequest(request, Limits()));
}

TEST(ValidateRequest, NamesFieldValueAndLimit) {
  ExpectRefused([](auto& r) { r.score.reset(), r.sampling.reset(); }, {"score", "sampling"});
  ExpectRefused([](auto& r) { r.token_ids.clear(); }, {"token_ids is empty"});
  ExpectRefused([](auto& r) { r.token_ids.resize(17); }, {"token_ids", "17", "max_model_len 16"});
  ExpectRefused([](auto& r) { r.token_ids[2] = 100; }, {"token_ids[2]", "100", "vocab_size 100"});
  ExpectRefused([](auto& r) { r.token_ids[1] = -1; }, {"token_ids[1]", "-1"});
  ExpectRefused([](auto& r) { r.score->start = 0; }, {"score_start 0"});
  ExpectRefused([](auto& r) { r.score->start = 4; }, {"score_start 4", "token_ids 4"});
  ExpectRefused([](auto& r) { r.token_ids.resize(1); }, {"score_start 1", "token_ids 1"});
  ExpectRefused([](auto& r) { r.score->top_k = -1; }, {"top_k -1"});
  ExpectRefused([](auto& r) { r.score->top_k = 9; }, {"top_k 9", "max_logprobs 8"});
  for (float bad : {0.0f, -1.0f, 1e-45f, 0.9e-30f, kNan, kInfinity}) {
    ExpectRefused([&](auto& r) { r.score->temperature = bad; },
                  {"temperature", "of the scores", "1e-30"});
  }
  ExpectRefused([](auto& r) { r.score->num_candidates = 3; },
                {"num_candidates 3", "max_candidates 2"});
  ExpectRefused([](auto& r) { r.score->dense = true; },
                {"vocabulary of 100", "max_dense_vocab_size 99"});
  ExpectRefused([](auto& r) { r.score->num_candidates = -1; }, {"num_candidates -1"});
  ExpectRefused([](auto& r) { r.score->num_candidates = 2; }, {"candidate_ids has 0", "must be 6"});
  ExpectRefused([](auto& r) { r.score->candidate_ids = {1}; },
                {"candidate_ids has 1", "must be 0"});
  ExpectRefused(
      [](auto& r) {
        r.score->num_candidates = 1;
        r.score->candidate_ids = {1, 2, 100};
      },
      {"candidate_ids[2]", "100"});
  ExpectRefused([](auto& r) { r.sampling->max_new_tokens = 0; }, {"sampling.max_new_tokens 0"});
  ExpectRefused([](auto& r) { r.sampling->max_new_tokens = 13; },
                {"sampling.max_new_tokens 13", "4 prompt tokens", "max_model_len 16"});
  ExpectRefused([](auto& r) { r.sampling->max_new_tokens = std::numeric_limits<int64_t>::max(); },
                {"sampling.max_new_tokens"});
  for (float bad : {-0.5f, 0.9e-30f, kNan, kInfinity}) {
    ExpectRefused([&](auto& r) { r.sampling->temperature = bad; }, {"sampling.temperature"});
  }
  for (float bad : {0.0f, -0.5f, 1.5f, kNan}) {
    ExpectRefused([&](auto& r) { r.sampling->top_p = bad; }, {"sampling.top_p"});
  }
  ExpectRefused([](auto& r) { r.sampling->top_k = -2; }, {"sampling.top_k -2", "0 (disable)"});
  ExpectRefused([](auto& r) { r.sampling->num_log_probs = 9; },
                {"sampling.num_log_probs 9", "max_logprobs 8"});
  ExpectRefused(
      [](auto& r) {
        r.sampling->stop_token_ids = {5, 100};
      },
      {"sampling.stop_token_ids[1]", "100"});
  ExpectRefused([](auto& r) { r.sampling->stop_token_ids.assign(kMaxStopTokenIds + 1, 5); },
                {"stop_token_ids has 1025", "1024"});
}

TEST(ValidateRequest, NamesTheFieldsThatChangeLogits) {
  for (float bad : {-0.1f, 1.1f, kNan}) {
    ExpectRefused([&](auto& r) { r.sampling->min_p = bad; },
                  {"sampling.min_p", "must be in [0, 1]"});
  }
  for (float bad : {-2.1f, 2.1f, kNan}) {
    ExpectRefused([&](auto& r) { r.sampling->frequency_penalty = bad; },
                  {"sampling.frequency_penalty", "must be in [-2, 2]"});
    ExpectRefused([&](auto& r) { r.sampling->presence_penalty = bad; },
                  {"sampling.presence_penalty", "must be in [-2, 2]"});
  }
  for (float bad : {0.0f, -1.0f, kNan, kInfinity}) {
    ExpectRefused([&](auto& r) { r.sampling->repetition_penalty = bad; },
                  {"sampling.repetition_penalty", "greater than zero and finite"});
  }
  ExpectRefused([](auto& r) { r.sampling->min_tokens = -1; }, {"sampling.min_tokens -1"});
  ExpectRefused([](auto& r) { r.sampling->min_tokens = r.sampling->max_new_tokens + 1; },
                {"sampling.min_tokens", "max_new_tokens"});
  using Ids = std::vector<int32_t>;
  ExpectRefused([](auto& r) { r.sampling->allowed_token_ids = Ids(); },
                {"sampling.allowed_token_ids is empty"});
  ExpectRefused([](auto& r) { r.sampling->allowed_token_ids = Ids(101, 5); },
                {"sampling.allowed_token_ids has 101", "vocab_size 100"});
  ExpectRefused(
      [](auto& r) {
        r.sampling->allowed_token_ids = Ids{1, 100};
      },
      {"sampling.allowed_token_ids[1] is 100", "vocab_size 100"});
  ExpectRefused(
      [](auto& r) {
        r.sampling->bad_words_ids = {{1}, {}};
      },
      {"sampling.bad_words_ids[1] has 0 ids"});
  ExpectRefused(
      [](auto& r) {
        r.sampling->bad_words_ids = {{1}, {2, -1}};
      },
      {"sampling.bad_words_ids[1][1] is -1"});
  ExpectRefused([](auto& r) { r.sampling->bad_words_ids = {Ids(kMaxBadWordTokens + 1, 3)}; },
                {"sampling.bad_words_ids[0] has 1025 ids", "1024"});
  ExpectRefused([](auto& r) { r.sampling->bad_words_ids.assign(kMaxBadWords + 1, {3}); },
                {"sampling.bad_words_ids has 1025 entries", "1024"});
  ExpectRefused(
      [](auto& r) {
        r.sampling->logit_bias = {{100, 1.0f}};
      },
      {"sampling.logit_bias", "100", "vocab_size 100"});
  ExpectRefused(
      [&](auto& r) {
        r.sampling->logit_bias = {{7, kNan}};
      },
      {"sampling.logit_bias of id 7", "finite"});
}

TEST(ValidateRequest, AcceptsTheLimitsOfSampling) {
  InferenceRequest request = Request();
  SamplingParams& sampling = *request.sampling;
  sampling.top_k = -1;
  sampling.min_p = 1.0f;
  sampling.presence_penalty = -2.0f;
  sampling.frequency_penalty = 2.0f;
  sampling.repetition_penalty = 10.0f;
  sampling.min_tokens = sampling.max_new_tokens;
  sampling.allowed_token_ids = {{0, 99}};
  sampling.bad_words_ids = {{0}, {1, 99}};
  sampling.logit_bias = {{0, -1000.0f}, {99, 1000.0f}};
  EXPECT_OK(ValidateRequest(request, Limits()));
}

TEST(ValidateRequest, RefusesSamplingOnAnEngineThatOnlyScores) {
  EngineLimits limits = Limits();
  limits.can_generate = false;
  InferenceRequest request = Request();
  EXPECT_ERROR(ValidateRequest(request, limits), kFailedPrecondition, "kv_cache_bytes is 0");
  request.sampling.reset();
  EXPECT_OK(ValidateRequest(request, limits));
}

TEST(ValidateEngineOptions, NamesTheOption) {
  EXPECT_OK(ValidateEngineOptions(EngineOptions()));
  EXPECT_ERROR(ValidateEngineOptions({.max_num_seqs = 0}), kInvalidArgument, "max_num_seqs 0");
  EXPECT_ERROR(ValidateEngineOptions({.kv_cache_bytes = -2}), kInvalidArgument,
               "kv_cache_bytes -2");
  EXPECT_ERROR(ValidateEngineOptions({.head_workspace_bytes = -1}), kInvalidArgument,
               "head_workspace_bytes -1");
  EXPECT_ERROR(ValidateEngineOptions({.memory = {.gpu_memory_utilization = 1.5}}), kInvalidArgument,
               "gpu_memory_utilization 1.5");
}

}  // namespace
}  // namespace taopd::testing
