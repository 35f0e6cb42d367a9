// The answers of an engine whose decode steps are recorded, beside those of one without graphs.
#pragma once

#include "tests/common/engine/result_box.h"
#include "tests/common/engine/tiny_model.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

// Expects `engine` to generate the same texts as an engine of the same decoder without graphs, with
// log-probs within `tolerance`.
inline void ExpectAnswersOfEagerSteps(InferenceEngine* engine, std::shared_ptr<Decoder> decoder,
                                      uint64_t seed, float temperature = 1, float tolerance = 0) {
  std::vector<InferenceRequest> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    const int64_t length = 3 + 4 * static_cast<int64_t>(i % 5);
    requests.push_back(Generation(RandomIds(length, seed + i), 12, temperature, seed + i));
    requests.back().sampling->ignore_eos = true;
  }
  const auto eager = MakeEngine(std::move(decoder));
  const std::vector<Result> expected = RunAll(eager.get(), requests);
  const std::vector<Result> results = RunAll(engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_OK(results[i]);
    const GeneratedTokens &a = *results[i]->generated, &b = *expected[i]->generated;
    EXPECT_EQ(a.ids, b.ids) << "request " << i;
    EXPECT_THAT(a.log_probs, ::testing::Pointwise(::testing::FloatNear(tolerance), b.log_probs));
  }
}

}  // namespace taopd::testing
