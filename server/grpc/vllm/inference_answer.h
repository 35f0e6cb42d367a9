// Converts the engine's results to answers of vllm.Inference.
#pragma once

#include <memory>
#include <optional>

#include "common/engine/engine_request.h"
#include "proto/vllm/inference.pb.h"
#include "server/generation/generated_text.h"
#include "server/grpc/vllm/inference_request.h"

namespace taopd {

// The answer to one sequence of a request, piece by piece. Not thread-safe.
class InferenceOutput {
 public:
  // `tokenizer` may be null if neither text nor stop strings are wanted; else it outlives the
  // object.
  InferenceOutput(const Tokenizer* tokenizer, const InferenceAnswerOptions& options,
                  std::shared_ptr<const GenerationRequest> request);

  // Returns the prompt_info; `score` is set if the engine scored the prompt.
  vllm::PromptInfo Prompt(const std::optional<ScoreRows>& score) const;
  // Returns the message of an update's tokens, or of all at once, with the end if they are the
  // last.
  vllm::SequenceOutput Take(const GeneratedTokens& tokens, bool is_last = true);

 private:
  void SetEnd(const GeneratedTokens& tokens, vllm::FinishInfo* info) const;

  const InferenceAnswerOptions options_;
  const std::shared_ptr<const GenerationRequest> request_;
  StreamedChoice choice_;
};

}  // namespace taopd
