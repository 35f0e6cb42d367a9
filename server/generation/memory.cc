#include "server/generation/memory.h"

#include <algorithm>
#include <span>
#include <string>

namespace taopd {
namespace {

constexpr int64_t kMaxBytes = int64_t{256} << 20;

// Estimates of the memory of a copy. Each choice has its own copy of the sampling fields and of the
// stop strings, so a small request for many choices may need much memory.
int64_t SamplingBytes(const SamplingParams& sampling) {
  constexpr size_t kBytesPerWord = 64;  // a vector in a vector
  size_t num_ids = sampling.stop_token_ids.size();
  if (sampling.allowed_token_ids) num_ids += sampling.allowed_token_ids->size();
  for (const std::vector<int32_t>& word : sampling.bad_words_ids) num_ids += word.size();
  return static_cast<int64_t>(num_ids * sizeof(int32_t) +
                              sampling.bad_words_ids.size() * kBytesPerWord);
}

int64_t StringsBytes(std::span<const std::string> strings) {
  size_t num_bytes = 0;
  for (const std::string& text : strings) num_bytes += sizeof(text) + text.size();
  return static_cast<int64_t>(num_bytes);
}

// An estimate of the memory of what all choices have copies of.
int64_t BytesOfChoices(const GenerationRequest& request) {
  const int64_t names = static_cast<int64_t>(request.request_id.size() + request.cache_salt.size());
  const int64_t mask =
      request.grammar
          ? static_cast<int64_t>(sizeof(int32_t) * request.sampling.stop_token_ids.size())
          : 0;
  const int64_t each = SamplingBytes(request.sampling) + StringsBytes(request.stop) + names + mask;
  return each * static_cast<int64_t>(request.NumChoices()) +
         static_cast<int64_t>(sizeof(int32_t)) * request.NumPromptTokens() * request.n;
}

absl::Status CheckQueue(const GenerationRequest& request, const EngineLimits& limits) {
  const int64_t num_tokens = request.NumPromptTokens() * request.n;
  const int64_t most = std::min(limits.max_queued_tokens, limits.max_client_queued_tokens);
  if (request.NumChoices() <= 1 || num_tokens <= most) return absl::OkStatus();
  return InvalidArgument("the prompts of all choices hold ", num_tokens, " tokens together, ",
                         most < limits.max_queued_tokens
                             ? Concat("more than a client's share ", most, " of ")
                             : "more than ",
                         "max_queued_tokens ", limits.max_queued_tokens,
                         "; send fewer prompts in one request, or a smaller n");
}

}  // namespace

absl::StatusOr<ByteBudget::Reservation> ReserveMemory(const GenerationRequest& request,
                                                      const AnswerBytes& answer,
                                                      const ServedModel& model,
                                                      const Caller& caller, ServingState* state) {
  TAOPD_RETURN_IF_ERROR(CheckQueue(request, model.limits));
  const int64_t num_bytes = answer.whole + BytesOfChoices(request);
  if (num_bytes > kMaxBytes) {
    return InvalidArgument(
        "the answer, the sampling fields and the stop strings of all choices may take ", num_bytes,
        " bytes, more than ", kMaxBytes,
        "; send fewer prompts in one request, or ask for fewer prompt_logprobs, logprobs or n");
  }
  return state->ReserveAnswer(num_bytes + answer.messages, caller.client);
}

}  // namespace taopd
