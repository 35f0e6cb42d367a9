#include "common/engine/sampling/processors.h"

#include <algorithm>
#include <limits>

namespace taopd {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
// vLLM's limit for biases.
constexpr float kMaxBias = 100.0f;

bool NeedsMinTokens(const SamplingParams& params, const SamplingState* state, int64_t step) {
  return state != nullptr && step < params.min_tokens && !state->ids_after_min_tokens().empty();
}

absl::Status ApplyMask(LogitMask* mask, std::span<const int32_t> generated_ids,
                       std::span<float> logits_V, std::vector<uint64_t>* words) {
  words->assign((logits_V.size() + 63) / 64, ~uint64_t{0});
  TAOPD_ASSIGN_OR_RETURN(const bool restricts, mask->Mask(generated_ids, *words));
  if (!restricts) return absl::OkStatus();
  for (size_t w = 0; w < words->size(); ++w) {
    const uint64_t allowed = (*words)[w];
    if (allowed == ~uint64_t{0}) continue;
    const size_t begin = 64 * w;
    const size_t end = std::min(logits_V.size(), begin + 64);
    if (allowed == 0) {  // most words of most grammars
      std::fill(logits_V.begin() + begin, logits_V.begin() + end, kForbidden);
      continue;
    }
    for (size_t v = begin; v < end; ++v) {
      if ((allowed >> (v % 64) & 1) == 0) logits_V[v] = kForbidden;
    }
  }
  return absl::OkStatus();
}

void AllowOnly(const std::vector<int32_t>& allowed_ids, std::span<float> logits_V) {
  std::vector<float> kept;
  kept.reserve(allowed_ids.size());
  for (const int32_t id : allowed_ids) kept.push_back(logits_V[id]);
  std::fill(logits_V.begin(), logits_V.end(), kForbidden);
  for (size_t i = 0; i < allowed_ids.size(); ++i) logits_V[allowed_ids[i]] = kept[i];
}

void ForbidBadWords(const std::vector<std::vector<int32_t>>& bad_words_ids,
                    std::span<const int32_t> generated_ids, std::span<float> logits_V) {
  for (const std::vector<int32_t>& word : bad_words_ids) {
    const size_t num_before = word.size() - 1;
    if (num_before > generated_ids.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, generated_ids.end() - num_before))
      logits_V[word.back()] = kForbidden;
  }
}

void ApplyPenalties(const SamplingParams& params, const SamplingState& state,
                    std::span<float> logits_V) {
  for (const auto& [id, seen] : state.seen()) {
    float logit = logits_V[id];
    if (seen.in_prompt || seen.num_generated > 0)
      logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (seen.num_generated > 0) {
      logit -= params.frequency_penalty * static_cast<float>(seen.num_generated);
      logit -= params.presence_penalty;
    }
    logits_V[id] = logit;
  }
}

}  // namespace

bool ChangesLogits(const SamplingParams& params, const SamplingState* state, int64_t step) {
  return params.mask != nullptr || params.allowed_token_ids || !params.bad_words_ids.empty() ||
         !params.logit_bias.empty() || NeedsMinTokens(params, state, step) ||
         (state != nullptr && !state->seen().empty());
}

absl::Status ProcessLogits(const SamplingParams& params, const SamplingState* state, int64_t step,
                           std::span<float> logits_V, std::vector<uint64_t>* mask_words) {
  const std::span<const int32_t> generated_ids =
      state == nullptr ? std::span<const int32_t>() : state->generated_ids();
  if (params.mask != nullptr)
    TAOPD_RETURN_IF_ERROR(ApplyMask(params.mask.get(), generated_ids, logits_V, mask_words));
  if (params.allowed_token_ids) AllowOnly(*params.allowed_token_ids, logits_V);
  ForbidBadWords(params.bad_words_ids, generated_ids, logits_V);
  if (NeedsMinTokens(params, state, step)) {
    for (const int32_t id : state->ids_after_min_tokens()) logits_V[id] = kForbidden;
  }
  for (const auto& [id, bias] : params.logit_bias.entries())
    logits_V[id] += std::clamp(bias, -kMaxBias, kMaxBias);
  if (state != nullptr) ApplyPenalties(params, *state, logits_V);
  return absl::OkStatus();
}

std::string NamesOfMasks(const SamplingParams& params) {
  std::string names;
  const auto add = [&names](bool used, const char* name) {
    if (used) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(params.mask != nullptr, "mask");
  add(params.allowed_token_ids.has_value(), "allowed_token_ids");
  add(!params.bad_words_ids.empty(), "bad_words_ids");
  add(params.min_tokens > 0, "min_tokens");
  return names;
}

}  // namespace taopd
