// The ways to score a sequence that teacher_bench compares. Each scorer is used by one thread and
// has a connection of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/engine/engine.h"

namespace taopd::bench {

struct Scored {
  // The teacher's k log-probs of the last row, on which all scorers must agree.
  std::vector<float> last_log_probs;
  int64_t answer_bytes = 0;  // size of the message or the body; 0 for an engine
};

class Scorer {
 public:
  virtual ~Scorer() = default;
  // Blocks until the scores of rows 1..P-1 have arrived. Ends the process on an error.
  virtual Scored Score(const std::vector<int32_t>& token_ids, int32_t top_k) = 0;
};

std::unique_ptr<Scorer> MakeEngineScorer(InferenceEngine* engine);
std::unique_ptr<Scorer> MakeGrpcScorer(int port);
// Scores by POST /v1/completions with prompt_logprobs, which also generates one token. With
// `compact`, arrays are in base64.
std::unique_ptr<Scorer> MakeHttpScorer(int port, bool compact);

}  // namespace taopd::bench
