// Responses of a model in this process.
#pragma once

#include "common/text/tokenizer/tokenizer.h"
#include "trainer/eval/response_source.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

class LocalSource final : public ResponseSource {
 public:
  // Both outlive this. Tokens become text without the special ones.
  LocalSource(RolloutEngine* engine, const Tokenizer* tokenizer)
      : engine_(engine), tokenizer_(tokenizer) {}
  void Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                std::function<void(size_t, absl::StatusOr<EvalResponse>)> done) override;

 private:
  RolloutEngine* engine_;
  const Tokenizer* tokenizer_;
};

}  // namespace taopd
