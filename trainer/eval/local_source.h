// Generates responses with the model in this process.
#pragma once

#include "common/text/tokenizer/tokenizer.h"
#include "trainer/eval/response_source.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

class LocalSource final : public ResponseSource {
 public:
  // Both must outlive the source. The text of a response leaves out the special tokens.
  LocalSource(RolloutEngine* engine, const Tokenizer* tokenizer)
      : engine_(engine), tokenizer_(tokenizer) {}
  void Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                Done done) override;
  void Cancel() override { engine_->CancelAll(); }

 private:
  RolloutEngine* engine_;
  const Tokenizer* tokenizer_;
};

}  // namespace taopd
