// Answers of vllm.Inference: from what the engine produces to messages.
#pragma once

#include <optional>

#include "common/engine/engine.h"
#include "proto/vllm/inference.pb.h"
#include "server/generation/generated_text.h"
#include "server/grpc/vllm/inference_request.h"

namespace taopd {

// Returns the prompt_info of a request; `score` is set if the engine scored its prompt.
vllm::PromptInfo ToPromptInfo(const GenerationRequest& request,
                              const InferenceAnswerOptions& options,
                              const std::optional<ScoreRows>& score);

// The outputs of one sequence, piece by piece. Not thread-safe.
class InferenceOutput {
 public:
  // `tokenizer` may be null if neither text nor stop strings are wanted; else it outlives the
  // object, and so does `request`.
  InferenceOutput(const Tokenizer* tokenizer, const InferenceAnswerOptions& options,
                  const GenerationRequest& request);

  // Returns the message of an update's tokens, or of all at once, with the end if they are the
  // last.
  vllm::SequenceOutput Take(const GeneratedTokens& tokens, bool is_last = true);

 private:
  void SetEnd(const GeneratedTokens& tokens, vllm::FinishInfo* info) const;

  const InferenceAnswerOptions options_;
  const GenerationRequest& request_;
  StreamedChoice choice_;
};

}  // namespace taopd
