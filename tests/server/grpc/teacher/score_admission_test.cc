#include "server/grpc/teacher/score_admission.h"

#include <cmath>
#include <functional>

#include "common/wire/teacher_protocol.h"
#include "tests/server/fake_engine.h"
#include "tests/server/grpc/score_requests.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class ScoreAdmissionTest : public ::testing::Test {
 protected:
  ScoreAdmissionTest() { state_.SetReady(fake_.model); }

  absl::StatusOr<AdmittedRequest> Admit(const v1::ScoreRequest& request) {
    return AdmitScore(request, {.client = "client"}, state_);
  }

  FakeModel fake_ = MakeFakeModel();
  ServingState state_{Clock::Real(), absl::Seconds(60)};
};

TEST_F(ScoreAdmissionTest, BadFieldsAreRefusedByName) {
  using Edit = std::function<void(v1::ScoreRequest&)>;
  const std::vector<std::pair<Edit, std::string>> cases = {
      {[](auto& r) { r.clear_token_ids(); }, "token_ids is empty: at least 1 token is needed"},
      {[](auto& r) {
         for (int i = 0; i < 60; ++i) r.add_token_ids(1);
       },
       "token_ids has 66 entries: exceeds max_model_len 64"},
      {[](auto& r) { r.set_token_ids(3, 32); },
       "token_ids[3] is 32: must be at least 0 and below vocab_size 32"},
      {[](auto& r) { r.set_token_ids(3, 0xFFFFFFFF); },
       "token_ids[3] is 4294967295: must be at most 2147483647"},
      {[](auto& r) { r.set_score_start(0); },
       "score_start 0 must be at least 1 and below the number of token_ids 6"},
      {[](auto& r) { r.set_score_start(6); },
       "score_start 6 must be at least 1 and below the number of token_ids 6"},
      {[](auto& r) { r.set_score_start(0xFFFFFFFF); }, "score_start 4294967295"},
      {[](auto& r) { r.set_top_k(9); }, "top_k 9 must be between 0 and max_logprobs 8"},
      {[](auto& r) { r.set_top_k(0x80000001); }, "top_k is 2147483649: must be at most 2147483647"},
      {[](auto& r) { r.set_temperature(-1.0f); },
       "temperature -1 of the scores must be a finite number of at least 1e-30"},
      {[](auto& r) { r.set_temperature(NAN); }, "temperature nan"},
      {[](auto& r) { r.set_temperature(INFINITY); }, "temperature inf"},
      {[](auto& r) { r.set_temperature(1e-45f); }, "temperature 1.40129846e-45 of the scores"},
      {[](auto& r) { r.set_num_candidates(5); },
       "num_candidates 5 must be between 0 and max_candidates 4"},
      {[](auto& r) { r.set_num_candidates(0xFFFFFFFF); }, "num_candidates is 4294967295"},
      {[](auto& r) { r.set_num_candidates(1); },
       "candidate_ids has 0 entries: must be 4, which is 4 scored rows times num_candidates 1"},
      {[](auto& r) { r.add_candidate_ids(1); }, "candidate_ids has 1 entries: must be 0"},
      {[](auto& r) {
         r.set_num_candidates(1);
         for (int i = 0; i < 4; ++i) r.add_candidate_ids(29 + i);
       },
       "candidate_ids[3] is 32: must be at least 0 and below vocab_size 32"},
      {[](auto& r) { r.set_request_id(std::string(1025, 'x')); },
       "request_id has 1025 bytes, the limit is 1024"},
  };
  for (const auto& [edit, message] : cases) {
    v1::ScoreRequest request = MakeScoreRequest();
    edit(request);
    EXPECT_ERROR(Admit(request), kInvalidArgument, message);
  }
  v1::ScoreRequest request = MakeScoreRequest();
  request.set_expected_revision("other");
  EXPECT_ERROR(Admit(request), kFailedPrecondition, "expected_revision other is not served");
}

TEST_F(ScoreAdmissionTest, TemperatureZeroMeansOne) {
  v1::ScoreRequest request = MakeScoreRequest();
  ASSERT_OK_AND_ASSIGN(const AdmittedRequest admitted, Admit(request));
  EXPECT_EQ(admitted.requests[0].score->temperature, 1.0f);
  request.set_temperature(0.25f);
  ASSERT_OK_AND_ASSIGN(const AdmittedRequest cooler, Admit(request));
  EXPECT_EQ(cooler.requests[0].score->temperature, 0.25f);
}

// A request that is out of range is refused as such although no memory is left: a client would send
// it again otherwise.
TEST_F(ScoreAdmissionTest, RequestsAreJudgedBeforeMemoryIsTaken) {
  const auto all = state_.message_budget().TryReserve(state_.message_budget().max_bytes());
  EXPECT_ERROR(Admit(MakeScoreRequest()), kResourceExhausted, "max_message_memory_bytes");
  v1::ScoreRequest request = MakeScoreRequest();
  request.set_top_k(9);
  EXPECT_ERROR(Admit(request), kInvalidArgument, "top_k 9");
}

TEST_F(ScoreAdmissionTest, AnswersHoldTheirMemoryUntilTheyAreGone) {
  {
    ASSERT_OK_AND_ASSIGN(const AdmittedRequest admitted, Admit(MakeScoreRequest()));
    EXPECT_GT(state_.message_budget().num_used(), 0);
  }
  EXPECT_EQ(state_.message_budget().num_used(), 0);
}

TEST(ScoreAdmissionSizeTest, ResponseLargerThanAMessageIsRefused) {
  const EngineLimits limits = {.vocab_size = 1000,
                               .max_model_len = 200000,
                               .max_logprobs = 128,
                               .max_candidates = 4,
                               .max_dense_vocab_size = 1000};
  const FakeModel fake = MakeFakeModel(false, limits);
  ServingState state(Clock::Real(), absl::Seconds(60));
  state.SetReady(fake.model);
  const auto admit = [&](const v1::ScoreRequest& request) {
    return AdmitScore(request, {.client = "client"}, state);
  };
  v1::ScoreRequest request;
  for (int i = 0; i < 70000; ++i) request.add_token_ids(1);
  request.set_score_start(1);
  request.set_top_k(128);
  EXPECT_ERROR(admit(request), kInvalidArgument, "the limit is 67108864");
  request.set_top_k(64);
  EXPECT_OK(admit(request));
  // Dense rows count, too, and only a small vocabulary may have them.
  request.mutable_options()->set_dense(true);
  EXPECT_ERROR(admit(request), kInvalidArgument, "dense over 1000");
  fake.model->limits.max_dense_vocab_size = 999;
  EXPECT_ERROR(admit(request), kInvalidArgument,
               "options.dense: the vocabulary of 1000 exceeds max_dense_vocab_size 999");
}

// The formula that both sides refuse requests by, against real messages.
TEST(ScoreReplyBytesTest, BoundsTheMessageFromAboveAndItsArraysFromBelow) {
  for (int asked = 0; asked < 64; ++asked) {
    constexpr int64_t kNumRows = 50;
    const ScoreParams params = {.start = 1,
                                .top_k = asked & 1 ? 5 : 0,
                                .entropy = (asked & 2) != 0,
                                .rank = (asked & 4) != 0,
                                .support_stats = (asked & 8) != 0,
                                .dense = (asked & 16) != 0,
                                .num_candidates = asked & 32 ? 3 : 0,
                                .candidate_ids = std::vector<int32_t>(3 * kNumRows, 2)};
    const ScoreRows rows = FakeScore(std::vector<int32_t>(kNumRows + 1, 4), params);
    const v1::ScoreResponse message =
        ToScoreResponse(std::string(kMaxRequestIdBytes, 'x'), std::string(64, 'a'), rows);
    const int64_t array_bytes =
        ScoreReplyArrayBytes({.top_k = params.top_k,
                              .num_candidates = params.num_candidates,
                              .entropy = params.entropy,
                              .rank = params.rank,
                              .support_stats = params.support_stats,
                              .dense_vocab_size = params.dense ? kFakeVocab : 0},
                             kNumRows);
    const int64_t message_bytes = static_cast<int64_t>(message.ByteSizeLong());
    EXPECT_LT(array_bytes, message_bytes) << asked;
    EXPECT_LE(message_bytes, array_bytes + kScoreReplyOverheadBytes) << asked;
    // The overhead is the same for every number of rows: the formula misses no array.
    EXPECT_LE(message_bytes, array_bytes + 1300) << asked;
  }
}

}  // namespace
}  // namespace taopd::testing
