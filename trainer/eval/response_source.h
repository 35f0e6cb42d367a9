// The source of an evaluation's responses: the model in this process (local_source.h) or a server
// (openai_source.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/data/prompt_dataset.h"

namespace taopd {

struct EvalSampling {
  double temperature = 0.7;  // temperature of the evaluated model; 0 is greedy
  double top_p = 0.95;
  int64_t max_tokens = 8192;
};

// A request for one response.
struct EvalTask {
  const PromptRecord* problem = nullptr;
  int64_t problem_index = 0;
  int64_t sample = 0;  // number of the response to the problem, from 0
  uint64_t seed = 0;
};

struct EvalResponse {
  std::string text;
  bool truncated = false;                       // the response was cut at max_tokens
  int64_t num_tokens = 0;                       // -1 if the server does not report it
  std::optional<double> reward = std::nullopt;  // from the server of eval.grader, if that is a URL
};

class ResponseSource {
 public:
  // Receives the index of a task, and the response.
  using Done = std::function<void(size_t index, absl::StatusOr<EvalResponse>)>;

  virtual ~ResponseSource() = default;
  // Generates a response for each task. Calls done(i, response) once for each index, in any order
  // and on any thread, possibly after Generate has returned. `tasks` and the objects that they
  // point to must live until the last `done` has run.
  virtual void Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                        Done done) = 0;
  // Asks the source to end the unfinished tasks of Generate: their `done` gets CANCELLED. A task
  // that it cannot end continues.
  virtual void Cancel() {}
};

}  // namespace taopd
