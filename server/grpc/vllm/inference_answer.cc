#include "server/grpc/vllm/inference_answer.h"

#include <utility>

namespace taopd {
namespace {

// Returns row `r` of arrays [R, k].
template <typename Ids, typename LogProbs>
vllm::CandidateTokenInfo Candidates(const Ids& ids, const LogProbs& log_probs, size_t r, size_t k) {
  vllm::CandidateTokenInfo info;
  for (size_t j = 0; j < k; ++j) {
    vllm::TokenInfo* token = info.add_tokens();
    token->set_id(static_cast<uint32_t>(ids[r * k + j]));
    token->set_logprob(log_probs[r * k + j]);
    token->set_rank(static_cast<uint32_t>(j + 1));
  }
  return info;
}

}  // namespace

InferenceOutput::InferenceOutput(const Tokenizer* tokenizer, const InferenceAnswerOptions& options,
                                 std::shared_ptr<const GenerationRequest> request)
    : options_(options),
      request_(std::move(request)),
      choice_(options.text || !request_->stop.empty() ? tokenizer : nullptr, *request_, {}) {}

vllm::PromptInfo InferenceOutput::Prompt(const std::optional<ScoreRows>& score) const {
  const std::vector<int32_t>& token_ids = request_->prompts[0].token_ids;
  vllm::PromptInfo info;
  info.set_num_prompt_tokens(static_cast<uint32_t>(token_ids.size()));
  if (options_.prompt_ids) info.mutable_token_ids()->Add(token_ids.begin(), token_ids.end());
  if (!request_->prompt_logprobs) return info;
  info.add_logprobs(0.0f);
  info.add_ranks(0);
  info.add_candidate_tokens();
  if (!score) return info;  // a prompt of one token
  for (size_t r = 0; r < static_cast<size_t>(score->num_rows); ++r) {
    info.add_logprobs(score->sampled_log_probs[r]);
    info.add_ranks(static_cast<uint32_t>(score->sampled_ranks[r]));
    *info.add_candidate_tokens() =
        Candidates(score->ids, score->log_probs, r, static_cast<size_t>(score->top_k));
  }
  return info;
}

vllm::SequenceOutput InferenceOutput::Take(const GeneratedTokens& tokens, bool is_last) {
  vllm::SequenceOutput out;
  out.set_num_tokens(static_cast<uint32_t>(tokens.ids.size()));
  const size_t k = tokens.ids.empty() ? 0 : tokens.top_ids.size() / tokens.ids.size();
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (options_.ids) out.add_token_ids(static_cast<uint32_t>(tokens.ids[i]));
    if (options_.logprobs) {
      out.add_logprobs(tokens.raw_log_probs[i]);
      out.add_ranks(static_cast<uint32_t>(tokens.ranks[i]));
    }
    if (options_.candidates)
      *out.add_candidate_tokens() = Candidates(tokens.top_ids, tokens.top_log_probs, i, k);
  }
  std::string text = choice_.Add(tokens, is_last);
  if (options_.text) out.set_text(std::move(text));
  if (is_last) SetEnd(tokens, out.mutable_finish_info());
  return out;
}

void InferenceOutput::SetEnd(const GeneratedTokens& tokens, vllm::FinishInfo* info) const {
  info->set_num_output_tokens(static_cast<uint32_t>(choice_.num_generated()));
  info->set_finish_reason(tokens.finish == FinishReason::kStop ? vllm::STOP : vllm::LENGTH);
  if (choice_.stop_string()) {
    info->set_stop_string(request_->stop[*choice_.stop_string()]);
  } else if (EndsWithStopToken(tokens, *request_)) {
    info->set_stop_token_id(static_cast<uint32_t>(tokens.ids.back()));
  } else if (tokens.finish == FinishReason::kStop) {
    info->set_eos_token_id(static_cast<uint32_t>(tokens.ids.back()));
  }
}

}  // namespace taopd
