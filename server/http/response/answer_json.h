// The parts of answers that several protocols share, as JSON texts in vLLM's shapes.
#pragma once

#include <absl/strings/escaping.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine_request.h"
#include "server/generation/generation_request.h"
#include "server/http/response/token_text.h"
#include "server/serving/serving_state.h"

namespace taopd {

// The log-probs of one position in the order of vLLM's answers: the actual token first, then the
// top k in descending order without it.
struct PositionEntry {
  int32_t id;
  float log_prob;
  int32_t rank;  // 0 if it was not asked for
};
// It is empty if there is nothing to report, as for the first token of a prompt.
using Position = std::vector<PositionEntry>;

// Returns one position for each token of the prompt. `rows` begin at position `start`.
std::vector<Position> PromptPositions(const std::vector<int32_t>& token_ids, int64_t start,
                                      const std::optional<ScoreRows>& rows);
// Returns one position for each generated token, with `top_k` alternatives.
std::vector<Position> GeneratedPositions(const GeneratedTokens& generated, int32_t top_k);

// Return INTERNAL if a log-prob is NaN or +inf, which JSON cannot express.
absl::Status CheckNumbers(const std::vector<Position>& positions);
absl::Status CheckNumbers(const std::vector<float>& log_probs);

// Returns the list of the ids; null if they are not wanted.
std::string IdsJson(const std::vector<int32_t>& ids, bool wanted = true);
// Returns little-endian numbers as a base64 text in quotes.
template <typename T>
std::string Base64Json(const std::vector<T>& values) {
  const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                values.size() * sizeof(T));
  return "\"" + absl::Base64Escape(bytes) + "\"";
}

// Appends the value of "prompt_logprobs" of one prompt: null if it was not asked for, else objects
// keyed by token ids, or the arrays of `compact`:
//   {"format":"base64","start":s,"shape":[R,k],"token_ids":..,"logprobs":..,"tail_logprobs":..,
//    "sampled_logprobs":..,"sampled_ranks":..,"candidate_logprobs":..,"candidates_shape":[R,M]}
// Each array is the base64 text of little-endian int32 or float32 values. `tokens` decodes
// "decoded_token"; one without a tokenizer gives null. Returns INTERNAL if a number is NaN or +inf.
absl::Status AppendPromptLogprobs(const GenerationRequest& request, const GenerationPrompt& prompt,
                                  const std::optional<ScoreRows>& rows, TokenText& tokens,
                                  std::string* out);

// Returns the log-probs of the candidates, [rows, candidates], with -inf for padding.
std::vector<float> CandidateLogProbs(const PromptScoring& scoring, const ScoreRows& rows);

// Returns whether the answer lists the log-probs of candidates in JSON.
inline bool ListsCandidates(const PromptScoring& scoring) {
  return scoring.num_candidates > 0 && !scoring.compact;
}
// Appends "prompt_token_id_logprobs" if ListsCandidates: for each position of the prompt, null or
// the log-probs of the candidates.
void AppendCandidateLogprobs(const GenerationRequest& request, const GenerationPrompt& prompt,
                             const std::optional<ScoreRows>& rows, std::string* out);

// Appends the `logprobs` object of completions over `positions`, which belong to token_ids from
// `first` on. The tokens before it are only context. `text_offset` is the offset in the text:
// on entry of the first token, and on return of the token after the last one.
void AppendCompletionLogprobs(const std::vector<int32_t>& token_ids, size_t first,
                              const std::vector<Position>& positions, int32_t top_k,
                              TokenText& tokens, int64_t* text_offset, std::string* out);

// Appends the `logprobs` object of chat completions for the tokens that `generated` holds, which
// are the last of `ids`: {"content":[{"token","logprob","bytes","top_logprobs"}]}, or null if no
// log-probs were asked for. Returns INTERNAL if a log-prob is NaN or +inf.
absl::Status AppendChatLogprobs(const GenerationRequest& request, const std::vector<int32_t>& ids,
                                const GeneratedTokens& generated, TokenText& tokens,
                                std::string* out);

// The details of a usage: none, those of the completion (the events of a chat), or also those of
// the prompt.
enum class UsageDetails { kNone, kCompletion, kAll };
// Returns {"prompt_tokens":..,"total_tokens":..,"completion_tokens":..} with the details, which are
// null.
std::string UsageJson(int64_t num_prompt_tokens, int64_t num_generated_tokens,
                      UsageDetails details);

// Returns the usage of a whole answer, with all details.
std::string UsageJson(const GenerationRequest& request,
                      const std::vector<InferenceResult>& results);

// Returns the value of "system_fingerprint".
std::string SystemFingerprintJson(const ServedModel& model);

// Returns the value of "stop_reason": the stop string or the stop id of the request that has ended
// the choice, else null. `stop_string` is GeneratedText::stop_string().
std::string StopReasonJson(const GeneratedTokens& generated, std::optional<size_t> stop_string,
                           const GenerationRequest& request);

// Returns "stop" or "length".
const char* FinishReasonName(FinishReason reason);

// Returns an upper estimate of the bytes of an answer with these parts. If `echo`, it also reports
// the prompt's tokens.
int64_t EstimateAnswerBytes(const GenerationRequest& request, bool echo);

}  // namespace taopd
