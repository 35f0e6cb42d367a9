// Answers of vllm.Inference: from what the engine produces to messages.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "common/text/stop_strings.h"
#include "common/text/tokenizer/incremental_decoder.h"
#include "proto/vllm/inference.pb.h"
#include "server/grpc/vllm/inference_request.h"

namespace taopd {

// The prompt_info of a request with these tokens; `score` is null unless the engine scored them.
vllm::PromptInfo ToPromptInfo(const std::vector<int32_t>& token_ids,
                              const InferenceAnswerOptions& options, const ScoreRows* score);

// The outputs of one sequence, piece by piece. Used by the engine's thread alone, once its request
// is submitted.
class InferenceOutput {
 public:
  // `tokenizer` may be null if neither text nor stop strings are wanted; else it outlives the
  // object.
  InferenceOutput(const Tokenizer* tokenizer, const InferenceAnswerOptions& options,
                  const SamplingParams& sampling);

  // Takes the next token. True if it completes a stop string, which ends the sequence
  // (InferenceRequest::should_stop).
  bool Push(int32_t id);
  // What has come since the last call. With `is_last`, also the end: then `so_far` is everything.
  // Each id of `so_far` must have been pushed.
  vllm::SequenceOutput Take(const GeneratedTokens& so_far, bool is_last);

 private:
  bool EndsWithStopId(const GeneratedTokens& tokens) const;
  void SetEnd(const GeneratedTokens& tokens, vllm::FinishInfo* info) const;

  const InferenceAnswerOptions options_;
  const std::vector<int32_t> stop_token_ids_;
  const int64_t min_tokens_;
  std::optional<IncrementalDecoder> decoder_;
  StopStringMatcher text_;
  int64_t num_pushed_ = 0;
  size_t bytes_before_last_ = 0;  // of the text, before the last id
  size_t num_taken_ = 0;
  size_t bytes_taken_ = 0;
};

}  // namespace taopd
