// Measures the cost of a hit of the score cache, from the key of the request to its scores, and the
// cost of storing:
//   build/cpu/bin/score_cache_bench
//
// The argument is the number of scored tokens, at k = 16 and a vocabulary of 151,936. Files are in
// the system's cache. The counter `bytes_per_token` is the size of an entry.
#include <benchmark/benchmark.h>

#include <cmath>

#include "common/base/check.h"
#include "common/base/random.h"
#include "tests/support/files.h"
#include "trainer/teacher/cache/score_cache.h"
#include "trainer/teacher/cache/score_entry.h"

namespace taopd {
namespace {

constexpr int32_t kTopK = 16;
constexpr uint64_t kVocabSize = 151'936;
constexpr int64_t kRoomBytes = int64_t{8} << 30;

struct Example {
  TeacherRequest request;
  TeacherScores scores;
};

// Four out of five sampled tokens are among the teacher's ids.
Example MakeExample(int64_t num_rows) {
  RandomStream random(1);
  Example example;
  example.request.score_start = 128;
  example.request.top_k = kTopK;
  for (int64_t t = 0; t < 128 + num_rows; ++t) {
    example.request.token_ids.push_back(static_cast<int32_t>(random.NextBelow(kVocabSize)));
  }
  example.scores.top_k = kTopK;
  for (int64_t r = 0; r < num_rows; ++r) {
    float log_prob = static_cast<float>(std::log(random.NextUniform() + 1e-3)) - 0.01f;
    for (int32_t j = 0; j < kTopK; ++j, log_prob -= static_cast<float>(random.NextUniform())) {
      example.scores.ids.push_back(static_cast<int32_t>(random.NextBelow(kVocabSize)));
      example.scores.log_probs.push_back(log_prob);
    }
    example.scores.log_tail.push_back(log_prob);
    example.scores.sampled_log_probs.push_back(
        r % 5 == 0 ? -30.0f : example.scores.log_probs[r * kTopK + r % 4]);
  }
  return example;
}

void Hit(benchmark::State& state) {
  const testing::TempDir dir;
  auto cache = ScoreCache::Open(dir.path(), kRoomBytes);
  TAOPD_CHECK(cache.ok());
  const Example example = MakeExample(state.range(0));
  (*cache)->Put(example.request, "rev", example.scores);
  for (auto _ : state) {
    const auto found = (*cache)->Find(example.request, "rev");
    TAOPD_CHECK(found.has_value());
    benchmark::DoNotOptimize(found->ids.data());
  }
  state.counters["bytes_per_token"] =
      static_cast<double>((*cache)->stats().bytes_written) / static_cast<double>(state.range(0));
}
BENCHMARK(Hit)->Arg(100)->Arg(1000)->Arg(8000)->Unit(benchmark::kMicrosecond);

void Put(benchmark::State& state) {
  const testing::TempDir dir;
  auto cache = ScoreCache::Open(dir.path(), kRoomBytes);
  TAOPD_CHECK(cache.ok());
  const Example example = MakeExample(state.range(0));
  for (auto _ : state) (*cache)->Put(example.request, "rev", example.scores);
}
BENCHMARK(Put)->Arg(1000)->Arg(8000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace taopd

BENCHMARK_MAIN();
