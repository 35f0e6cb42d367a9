// Where an evaluation's responses come from: the model in this process, or a server.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/data/prompt_dataset.h"

namespace taopd {

struct EvalSampling {
  double temperature = 0.7;  // 0 = greedy
  double top_p = 0.95;
  int64_t max_tokens = 8192;
};

struct EvalTask {
  const PromptRecord* problem = nullptr;
  int64_t problem_index = 0;
  int64_t sample = 0;  // of the problem, from 0
  uint64_t seed = 0;
};

struct EvalResponse {
  std::string text;
  bool truncated = false;  // cut at max_tokens
  int64_t num_tokens = 0;  // -1: the server did not say
};

class ResponseSource {
 public:
  virtual ~ResponseSource() = default;
  // Generates for all tasks; `done(i, response)` runs once for each index in any order, on any
  // thread. Returns at once or after the last one. What `tasks` point to must live until the last
  // done has run.
  virtual void Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                        std::function<void(size_t index, absl::StatusOr<EvalResponse>)> done) = 0;
};

}  // namespace taopd
