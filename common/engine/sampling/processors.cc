#include "common/engine/sampling/processors.h"

#include <algorithm>
#include <limits>

#include "common/engine/sampling/logit_row.h"

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

void AllowOnly(const std::vector<int32_t>& allowed_ids, std::span<const int32_t> ids_N,
               std::span<float> logits_N) {
  std::vector<float> kept;
  kept.reserve(allowed_ids.size());
  for (const int32_t id : allowed_ids) kept.push_back(logits_N[PlaceOf(id, ids_N)]);
  std::fill(logits_N.begin(), logits_N.end(), kForbidden);
  for (size_t i = 0; i < allowed_ids.size(); ++i)
    logits_N[PlaceOf(allowed_ids[i], ids_N)] = kept[i];
}

float WithPenalties(const SamplingParams& params, const SamplingState::Seen& seen, float logit) {
  if (seen.in_prompt || seen.num_generated > 0)
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  if (seen.num_generated > 0) {
    logit -= params.frequency_penalty * static_cast<float>(seen.num_generated);
    logit -= params.presence_penalty;
  }
  return logit;
}

// Calls change(id, function) for each change of a single logit, in their order.
template <typename Change>
void ForEachChange(const SamplingParams& params, const SamplingState* state, int64_t step,
                   const Change& change) {
  const auto forbid = [](float) { return kForbidden; };
  const std::span<const int32_t> generated_ids =
      state == nullptr ? std::span<const int32_t>() : state->generated_ids();
  for (const std::vector<int32_t>& word : params.bad_words_ids) {
    const size_t num_before = word.size() - 1;
    if (num_before > generated_ids.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, generated_ids.end() - num_before))
      change(word.back(), forbid);
  }
  if (NeedsMinTokens(params, state, step)) {
    for (const int32_t id : state->ids_after_min_tokens()) change(id, forbid);
  }
  for (const LogitBias::Entry& entry : params.logit_bias.entries()) {
    const float bias = std::clamp(entry.second, -kMaxBias, kMaxBias);
    change(entry.first, [bias](float logit) { return logit + bias; });
  }
  if (state == nullptr) return;
  for (const auto& entry : state->seen()) {
    change(entry.first, [&](float logit) { return WithPenalties(params, entry.second, logit); });
  }
}

}  // namespace

bool ChangesLogits(const SamplingParams& params, const SamplingState* state, int64_t step) {
  return params.mask != nullptr || params.allowed_token_ids || !params.bad_words_ids.empty() ||
         !params.logit_bias.empty() || NeedsMinTokens(params, state, step) ||
         (state != nullptr && !state->seen().empty());
}

std::vector<int32_t> ListedIds(const SamplingParams& params, const SamplingState* state,
                               int64_t step) {
  std::vector<int32_t> ids = params.allowed_token_ids.value_or(std::vector<int32_t>());
  ForEachChange(params, state, step, [&](int32_t id, const auto&) { ids.push_back(id); });
  return ids;
}

absl::Status ProcessLogits(const SamplingParams& params, const SamplingState* state, int64_t step,
                           std::span<const int32_t> ids_N, std::span<float> logits_N,
                           std::vector<uint64_t>* mask_words) {
  if (params.mask != nullptr) {
    const std::span<const int32_t> generated_ids =
        state == nullptr ? std::span<const int32_t>() : state->generated_ids();
    TAOPD_RETURN_IF_ERROR(ApplyMask(params.mask.get(), generated_ids, logits_N, mask_words));
  }
  if (params.allowed_token_ids) AllowOnly(*params.allowed_token_ids, ids_N, logits_N);
  ForEachChange(params, state, step, [&](int32_t id, const auto& changed) {
    float& logit = logits_N[PlaceOf(id, ids_N)];
    logit = changed(logit);
  });
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
