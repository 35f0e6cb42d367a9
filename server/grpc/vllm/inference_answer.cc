#include "server/grpc/vllm/inference_answer.h"

#include <algorithm>

namespace taopd {
namespace {

// Row `r` of arrays [R, k].
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

vllm::PromptInfo ToPromptInfo(const std::vector<int32_t>& token_ids,
                              const InferenceAnswerOptions& options, const ScoreRows* score) {
  vllm::PromptInfo info;
  info.set_num_prompt_tokens(static_cast<uint32_t>(token_ids.size()));
  if (options.prompt_ids) info.mutable_token_ids()->Add(token_ids.begin(), token_ids.end());
  if (!options.prompt_logprobs) return info;
  info.add_logprobs(0.0f);
  info.add_ranks(0);
  info.add_candidate_tokens();
  if (score == nullptr) return info;  // a prompt of one token
  for (size_t r = 0; r < static_cast<size_t>(score->num_rows); ++r) {
    info.add_logprobs(score->sampled_log_probs[r]);
    info.add_ranks(static_cast<uint32_t>(score->sampled_ranks[r]));
    *info.add_candidate_tokens() =
        Candidates(score->ids, score->log_probs, r, static_cast<size_t>(score->top_k));
  }
  return info;
}

InferenceOutput::InferenceOutput(const Tokenizer* tokenizer, const InferenceAnswerOptions& options,
                                 const SamplingParams& sampling)
    : options_(options),
      stop_token_ids_(sampling.stop_token_ids),
      min_tokens_(sampling.min_tokens),
      text_(options.stop_strings, options.include_stop_strings) {
  if (options.text || !options.stop_strings.empty())
    decoder_.emplace(tokenizer, options.skip_special_tokens);
}

bool InferenceOutput::Push(int32_t id) {
  ++num_pushed_;
  if (!decoder_) return false;
  bytes_before_last_ = text_.text().size();
  return text_.Append(decoder_->Push(id), /*may_stop=*/num_pushed_ > min_tokens_);
}

bool InferenceOutput::EndsWithStopId(const GeneratedTokens& tokens) const {
  return tokens.finish == FinishReason::kStop && !text_.matched();
}

vllm::SequenceOutput InferenceOutput::Take(const GeneratedTokens& so_far, bool is_last) {
  vllm::SequenceOutput out;
  out.set_num_tokens(static_cast<uint32_t>(so_far.ids.size() - num_taken_));
  const size_t k = so_far.ids.empty() ? 0 : so_far.top_ids.size() / so_far.ids.size();
  for (size_t i = num_taken_; i < so_far.ids.size(); ++i) {
    if (options_.ids) out.add_token_ids(static_cast<uint32_t>(so_far.ids[i]));
    if (options_.logprobs) {
      out.add_logprobs(so_far.raw_log_probs[i]);
      out.add_ranks(static_cast<uint32_t>(so_far.ranks[i]));
    }
    if (options_.candidates)
      *out.add_candidate_tokens() = Candidates(so_far.top_ids, so_far.top_log_probs, i, k);
  }
  num_taken_ = so_far.ids.size();

  const bool ends_with_stop_id = is_last && EndsWithStopId(so_far);
  if (is_last && decoder_ && !ends_with_stop_id && !text_.matched())
    text_.Append(decoder_->Finish());
  if (options_.text) {
    // The text of a stop id is no part of the answer, unless it is asked for.
    size_t end = is_last ? text_.text().size() : text_.num_streamable();
    if (ends_with_stop_id && !options_.include_stop_strings) end = bytes_before_last_;
    end = std::max(end, bytes_taken_);
    out.set_text(text_.text().substr(bytes_taken_, end - bytes_taken_));
    bytes_taken_ = end;
  }
  if (is_last) SetEnd(so_far, out.mutable_finish_info());
  return out;
}

void InferenceOutput::SetEnd(const GeneratedTokens& tokens, vllm::FinishInfo* info) const {
  info->set_num_output_tokens(static_cast<uint32_t>(tokens.ids.size()));
  info->set_finish_reason(tokens.finish == FinishReason::kStop ? vllm::STOP : vllm::LENGTH);
  if (text_.matched()) {
    info->set_stop_string(options_.stop_strings[*text_.matched()]);
  } else if (EndsWithStopId(tokens)) {
    const int32_t id = tokens.ids.back();
    const bool asked_for =
        std::find(stop_token_ids_.begin(), stop_token_ids_.end(), id) != stop_token_ids_.end();
    asked_for ? info->set_stop_token_id(static_cast<uint32_t>(id))
              : info->set_eos_token_id(static_cast<uint32_t>(id));
  }
}

}  // namespace taopd
