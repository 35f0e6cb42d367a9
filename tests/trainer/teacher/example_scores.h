// A teacher whose numbers follow from the request by plain arithmetic, and requests to ask it.
#pragma once

#include <absl/synchronization/blocking_counter.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd::testing {

inline TeacherInfo ExampleInfo() {
  return {.model_name = "example",
          .revision = "rev-1",
          .head_vocab_size = 50,
          .max_model_len = 64,
          .max_top_k = 16,
          .max_candidates = 8,
          .max_dense_vocab_size = 64};
}

inline TeacherRequest ExampleRequest(int index, int64_t num_tokens = 12, int32_t top_k = 4) {
  RandomStream random(7, "request", {static_cast<uint64_t>(index)});
  TeacherRequest request = {.request_id = Concat("r", index)};
  for (int64_t t = 0; t < num_tokens; ++t) {
    request.token_ids.push_back(static_cast<int32_t>(random.NextBelow(50)));
  }
  request.score_start = 3;
  request.top_k = top_k;
  return request;
}

inline std::vector<TeacherRequest> ExampleRequests(int count) {
  std::vector<TeacherRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back(ExampleRequest(i));
  return requests;
}

// ExampleRequest with everything that a request may ask for; candidates repeat and meet the top-k.
inline TeacherRequest FullRequest(int index, int64_t num_tokens = 12, int32_t top_k = 4,
                                  int32_t num_candidates = 5) {
  TeacherRequest request = ExampleRequest(index, num_tokens, top_k);
  RandomStream random(8, "candidates", {static_cast<uint64_t>(index)});
  request.entropy = true;
  request.dense = true;
  request.num_candidates = num_candidates;
  for (int64_t i = 0; i < (num_tokens - request.score_start) * num_candidates; ++i) {
    request.candidate_ids.push_back(static_cast<int32_t>(random.NextBelow(50)));
  }
  return request;
}

// Row r: a softmax over the vocabulary drawn from the tokens before position t.
inline TeacherScores ExampleScores(const TeacherRequest& request, const TeacherInfo& info) {
  TeacherScores scores = {.top_k = request.top_k, .revision = info.revision};
  const int64_t vocab = info.head_vocab_size;
  uint64_t prefix = 0;
  for (size_t t = 0; t < request.token_ids.size(); ++t) {
    if (static_cast<int64_t>(t) >= request.score_start) {
      RandomStream random(prefix, "row");
      std::vector<double> log_probs(vocab);
      double sum = 0;
      for (double& value : log_probs) sum += std::exp(value = 3 * random.NextNormal());
      for (double& value : log_probs) value -= std::log(sum);
      std::vector<int32_t> order(vocab);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(),
                [&](int32_t a, int32_t b) { return log_probs[a] > log_probs[b]; });
      double tail = 0;
      for (int64_t j = 0; j < vocab; ++j) {
        if (j < request.top_k) {
          scores.ids.push_back(order[j]);
          scores.log_probs.push_back(static_cast<float>(log_probs[order[j]]));
        } else {
          tail += std::exp(log_probs[order[j]]);
        }
      }
      scores.log_tail.push_back(static_cast<float>(std::log(tail)));
      scores.sampled_log_probs.push_back(static_cast<float>(log_probs[request.token_ids[t]]));
      const auto first = static_cast<int64_t>(scores.candidate_log_probs.size());
      double outside = tail;
      std::vector<bool> counted(vocab, false);
      for (int32_t j = 0; j < request.top_k; ++j) counted[order[j]] = true;
      for (int32_t j = 0; j < request.num_candidates; ++j) {
        const int32_t id = request.candidate_ids[first + j];
        scores.candidate_log_probs.push_back(static_cast<float>(log_probs[id]));
        if (!counted[id]) outside -= std::exp(log_probs[id]);
        counted[id] = true;
      }
      if (request.num_candidates > 0) {
        scores.candidate_log_tail.push_back(static_cast<float>(std::log(std::max(0.0, outside))));
      }
      double entropy = 0;
      for (const double value : log_probs) entropy -= std::exp(value) * value;
      if (request.entropy) scores.entropy.push_back(static_cast<float>(entropy));
      if (request.dense) {
        scores.dense_log_probs.insert(scores.dense_log_probs.end(), log_probs.begin(),
                                      log_probs.end());
      }
    }
    prefix = DeriveSeed(prefix, "token", {static_cast<uint64_t>(request.token_ids[t])});
  }
  return scores;
}

// Expects equal scores; of floats, NaN equals itself, and 0 is not -0.
inline void ExpectSameBits(const TeacherScores& a, const TeacherScores& b) {
  EXPECT_EQ(a.top_k, b.top_k);
  EXPECT_EQ(a.ids, b.ids);
  for (const auto floats :
       {&TeacherScores::log_probs, &TeacherScores::log_tail, &TeacherScores::sampled_log_probs,
        &TeacherScores::entropy, &TeacherScores::candidate_log_probs,
        &TeacherScores::candidate_log_tail, &TeacherScores::dense_log_probs}) {
    ASSERT_EQ((a.*floats).size(), (b.*floats).size());
    for (size_t i = 0; i < (a.*floats).size(); ++i)
      EXPECT_EQ(std::bit_cast<uint32_t>((a.*floats)[i]), std::bit_cast<uint32_t>((b.*floats)[i]));
  }
}

// Scores all requests and waits for all of the answers, in the order of the requests.
template <typename Client>
std::vector<absl::StatusOr<TeacherScores>> ScoreAll(Client* client,
                                                    const std::vector<TeacherRequest>& requests) {
  std::vector<absl::StatusOr<TeacherScores>> answers(requests.size());
  absl::BlockingCounter open(static_cast<int>(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    client->Score(requests[i], [&, i](absl::StatusOr<TeacherScores> scores) {
      answers[i] = std::move(scores);
      open.DecrementCount();
    });
  }
  open.Wait();
  return answers;
}
template <typename Client>
absl::StatusOr<TeacherScores> ScoreOne(Client* client, const TeacherRequest& request) {
  return ScoreAll(client, {request})[0];
}

}  // namespace taopd::testing
