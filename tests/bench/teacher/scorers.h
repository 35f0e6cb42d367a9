// The ways to have a sequence scored that teacher_bench compares. Each scorer is used by one thread
// and has a connection of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/engine/engine.h"

namespace taopd::bench {

struct Scored {
  // The teacher's k log-probs of the last row: all scorers must agree on them.
  std::vector<float> last_log_probs;
  int64_t answer_bytes = 0;  // of the message or the body; 0 for an engine
};

class Scorer {
 public:
  virtual ~Scorer() = default;
  // Blocks until the scores of rows 1..P-1 have come. Ends the process if they do not.
  virtual Scored Score(const std::vector<int32_t>& token_ids, int32_t top_k) = 0;
};

std::unique_ptr<Scorer> MakeEngineScorer(InferenceEngine* engine);
std::unique_ptr<Scorer> MakeGrpcScorer(int port);
// POST /v1/completions with prompt_logprobs, which generates one token besides. `compact`: arrays
// in base64.
std::unique_ptr<Scorer> MakeHttpScorer(int port, bool compact);

}  // namespace taopd::bench
