#include "server/grpc/vllm/inference_request.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/random.h"
#include "common/text/stop_strings.h"
#include "common/wire/teacher_protocol.h"
#include "server/generation/engine_requests.h"
#include "server/generation/prompts.h"
#include "server/generation/request_fields.h"
#include "server/grpc/calls/sampling_conversion.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using Gateway = vllm::grpc::engine::SamplingParams;

// The size of a message with a token and its text that waits to be sent.
constexpr int64_t kBytesOfTokenMessage = 512;
// The size of a candidate in a message, and of its objects in memory.
constexpr int64_t kBytesPerCandidate = 16;
constexpr int64_t kMemoryPerCandidate = 96;

absl::Status RefuseUnsupported(const vllm::GenerateRequest& request) {
  TAOPD_RETURN_IF_ERROR(RefuseIf(request.sampling().num_sequences() > 1, "num_sequences > 1"));
  TAOPD_RETURN_IF_ERROR(RefuseIf(request.priority() != 0, "priority"));
  TAOPD_RETURN_IF_ERROR(RefuseIf(request.media_size() > 0, "media"));
  TAOPD_RETURN_IF_ERROR(RefuseIf(!request.lora_name().empty(), "lora_name"));
  const vllm::ResponseOptions& response = request.response();
  TAOPD_RETURN_IF_ERROR(RefuseIf(response.prompt_candidates().has_token_ids(),
                                 "prompt_candidates token_ids selector"));
  TAOPD_RETURN_IF_ERROR(RefuseIf(response.output_candidates().has_token_ids(),
                                 "output_candidates token_ids selector"));
  TAOPD_RETURN_IF_ERROR(
      RefuseIf(request.kv().kv_transfer_params().fields_size() > 0, "kv_transfer_params"));
  return RefuseIf(request.kv().ec_transfer_params().fields_size() > 0, "ec_transfer_params");
}

absl::Status ReadPrompt(const vllm::GenerateRequest& request, const ServedModel& model,
                        GenerationRequest* out) {
  switch (request.prompt_case()) {
    case vllm::GenerateRequest::kTokenIds: {
      GenerationPrompt prompt;
      TAOPD_ASSIGN_OR_RETURN(prompt.token_ids, TokenIds("token_ids", request.token_ids().ids()));
      return AddPrompt(std::move(prompt), model.limits, out);
    }
    case vllm::GenerateRequest::kText:
      return AddPromptText(request.text(), /*add_special_tokens=*/true, "text", model, out);
    default:
      return InvalidArgument("prompt is required");
  }
}

absl::Status ReadTruncation(const vllm::GenerateRequest& request, const Gateway* gateway,
                            GenerationRequest* out) {
  if (gateway != nullptr && gateway->has_truncate_prompt_tokens())
    out->truncate_prompt_tokens = gateway->truncate_prompt_tokens();
  if (request.truncate_prompt_tokens() != 0)
    out->truncate_prompt_tokens = request.truncate_prompt_tokens();
  if (out->truncate_prompt_tokens.value_or(0) >= -1) return absl::OkStatus();
  return FieldError("truncate_prompt_tokens", "truncate_prompt_tokens must be at least -1, got ",
                    *out->truncate_prompt_tokens, ".");
}

// In these messages, 0 turns off the fields that have another neutral value. A temperature of 0 is
// greedy.
absl::Status ReadSampling(const vllm::GenerateRequest& request, const Gateway* gateway,
                          SamplingParams* sampling) {
  sampling->temperature = 0.0f;
  const std::initializer_list<const google::protobuf::Message*> parts = {
      &request, &request.sampling(), &request.decoding(), gateway};
  for (const google::protobuf::Message* part : parts) {
    if (part != nullptr) TAOPD_RETURN_IF_ERROR(ApplySamplingNumbers(*part, sampling));
  }
  v1::SamplingOptions ids;
  *ids.mutable_logit_bias() = request.decoding().logit_bias();
  ids.mutable_allowed_token_ids()->CopyFrom(request.decoding().allowed_token_ids());
  return ApplySamplingOptions(ids, sampling);
}

// Reads the constraint of either service, whose messages name the schema differently.
template <typename Message>
absl::StatusOr<std::optional<GrammarSpec>> GrammarOf(const Message& message, bool has_json,
                                                     const std::string& json) {
  using Kind = GrammarSpec::Kind;
  if (has_json) return GrammarSpec{Kind::kJsonSchema, json};
  if (message.has_regex()) return GrammarSpec{Kind::kRegex, message.regex()};
  if (message.has_grammar()) return GrammarOfText(message.grammar());
  if (message.has_structural_tag())
    return GrammarSpec{Kind::kStructuralTag, message.structural_tag()};
  if (message.json_object()) return GrammarOfAnyObject();
  if (!message.has_choice()) return std::nullopt;
  const auto& choices = message.choice().choices();
  if (choices.empty()) return InvalidArgument("structured_output: choice cannot be empty");
  return GrammarOfChoices({choices.begin(), choices.end()});
}

absl::Status ReadStopping(const vllm::StoppingCriteria& stopping, const ServedModel& model,
                          GenerationRequest* out) {
  SamplingParams& sampling = out->sampling;
  out->max_tokens = stopping.max_new_tokens() != 0 ? stopping.max_new_tokens() : INT64_MAX;
  sampling.min_tokens = stopping.min_new_tokens();
  TAOPD_ASSIGN_OR_RETURN(sampling.stop_token_ids,
                         TokenIds("stop_token_ids", stopping.stop_token_ids()));
  sampling.ignore_eos = stopping.ignore_eos();
  out->stop.assign(stopping.stop_strings().begin(), stopping.stop_strings().end());
  out->include_stop_str_in_output = stopping.include_stop_strings();
  if (!out->stop.empty() && model.tokenizer == nullptr)
    return InvalidArgument("stop_strings: the model has no tokenizer");
  return ValidateStopStrings(out->stop);
}

absl::StatusOr<int32_t> NumCandidates(const char* field, const vllm::CandidateTokens& candidates,
                                      const EngineLimits& limits) {
  const int64_t asked = candidates.all() ? limits.vocab_size : candidates.top_n();
  if (asked > limits.max_logprobs) {
    return InvalidArgument(field, " asks for ", asked, " tokens, the limit is max_logprobs ",
                           limits.max_logprobs);
  }
  return static_cast<int32_t>(asked);
}

absl::Status ReadResponse(const vllm::ResponseOptions& response, const ServedModel& model,
                          GenerationRequest* out, InferenceAnswerOptions* options) {
  options->prompt_ids = response.prompt_token_ids();
  options->text = !response.has_output_text() || response.output_text();
  options->ids = response.output_token_ids();
  options->logprobs = response.output_logprobs();
  options->candidates = response.has_output_candidates();
  if (model.tokenizer == nullptr) options->text = false;  // there is none: the text stays empty
  out->skip_special_tokens = !response.has_skip_special_tokens() || response.skip_special_tokens();
  SamplingParams& sampling = out->sampling;
  sampling.log_probs = false;
  sampling.raw_log_probs = sampling.ranks = options->logprobs;
  sampling.top_log_probs_mode = LogProbsMode::kRaw;
  TAOPD_ASSIGN_OR_RETURN(
      sampling.num_log_probs,
      NumCandidates("output_candidates", response.output_candidates(), model.limits));
  if (!response.prompt_logprobs()) return absl::OkStatus();
  out->prompt_logprobs = 1;
  if (response.has_prompt_candidates()) {
    TAOPD_ASSIGN_OR_RETURN(
        out->prompt_logprobs,
        NumCandidates("prompt_candidates", response.prompt_candidates(), model.limits));
  }
  return absl::OkStatus();
}

absl::Status ReadGrammar(const vllm::DecodingParameters& decoding, const Gateway* gateway,
                         const ServedModel& model, GenerationRequest* out) {
  TAOPD_ASSIGN_OR_RETURN(
      std::optional<GrammarSpec> spec,
      gateway == nullptr ? GrammarOf(decoding, decoding.has_json(), decoding.json())
                         : GrammarOf(*gateway, gateway->has_json_schema(), gateway->json_schema()));
  if (!spec) return absl::OkStatus();
  if (model.grammar_compiler == nullptr)
    return InvalidArgument("structured_output: the model has no tokenizer");
  out->grammar = RequestedGrammar{*std::move(spec), "structured_output"};
  return absl::OkStatus();
}

absl::Status ReadRequest(const vllm::GenerateRequest& request, const Gateway* gateway,
                         const ServedModel& model, GenerationRequest* out,
                         InferenceAnswerOptions* options) {
  if (!request.model().empty() && request.model() != model.name)
    return absl::NotFoundError(Concat("model `", Excerpt(request.model()), "` not found"));
  TAOPD_RETURN_IF_ERROR(CheckRequestId("request_id", request.request_id()));
  TAOPD_RETURN_IF_ERROR(RefuseUnsupported(request));
  TAOPD_RETURN_IF_ERROR(CheckCacheSalt(request.kv().cache_salt()));
  out->request_id = request.request_id();
  if (gateway != nullptr) out->n = std::max<int64_t>(gateway->n(), 1);
  out->cache_salt = request.kv().cache_salt();
  // A salt that nobody else has.
  if (request.kv().bypass_prefix_cache()) out->cache_salt += Concat(" bypass ", FreshBits());
  if (request.sampling().has_seed()) out->seed = SignedSeed(request.sampling().seed());
  TAOPD_RETURN_IF_ERROR(ReadTruncation(request, gateway, out));
  TAOPD_RETURN_IF_ERROR(ReadStopping(request.stopping(), model, out));
  TAOPD_RETURN_IF_ERROR(ReadPrompt(request, model, out));
  TAOPD_RETURN_IF_ERROR(ReadSampling(request, gateway, &out->sampling));
  TAOPD_RETURN_IF_ERROR(CheckNumChoices(out->n, out->sampling.temperature));
  TAOPD_RETURN_IF_ERROR(ReadResponse(request.response(), model, out, options));
  TAOPD_RETURN_IF_ERROR(ReadGrammar(request.decoding(), gateway, model, out));
  TAOPD_RETURN_IF_ERROR(FitPrompts(model.limits, /*echo_only=*/false, out));
  return ValidateChoices(*out, model.limits);
}

// Returns an upper estimate of the memory of messages that wait to be sent.
absl::StatusOr<int64_t> MessageMemory(const GenerationRequest& request, bool streams) {
  const GenerationPrompt& prompt = request.prompts[0];
  const int64_t num_prompt = static_cast<int64_t>(prompt.token_ids.size());
  const int64_t num_new = prompt.max_new_tokens;
  const int64_t prompt_candidates = request.prompt_logprobs ? *request.prompt_logprobs + 1 : 0;
  const int64_t new_candidates = request.sampling.num_log_probs;
  const bool sends_tokens = streams && !request.prompt_logprobs;
  const int64_t message_bytes =
      num_prompt * (16 + kBytesPerCandidate * prompt_candidates) +
      (sends_tokens ? 0 : num_new * (24 + kBytesPerCandidate * new_candidates));
  if (message_bytes > kMaxMessageBytes) {
    return InvalidArgument("prompt_candidates for ", num_prompt,
                           " tokens and output_candidates for max_tokens ", num_new,
                           " may need a message of ", message_bytes, " bytes, the limit is ",
                           kMaxMessageBytes);
  }
  return num_prompt * (16 + kMemoryPerCandidate * prompt_candidates) +
         request.n * num_new * (kBytesOfTokenMessage + kMemoryPerCandidate * new_candidates);
}

}  // namespace

absl::Status RefuseIf(bool is_set, const char* what) {
  return is_set ? InvalidArgument(what, " is not supported") : absl::OkStatus();
}

absl::StatusOr<AdmittedInference> AdmitInference(const vllm::GenerateRequest& request, bool streams,
                                                 const Caller& caller, ServingState& state,
                                                 const Gateway* gateway) {
  AdmittedInference admitted;
  TAOPD_ASSIGN_OR_RETURN(admitted.model, state.Admit());
  admitted.caller = caller;
  admitted.request = std::make_shared<GenerationRequest>();
  TAOPD_RETURN_IF_ERROR(
      ReadRequest(request, gateway, *admitted.model, admitted.request.get(), &admitted.options));
  TAOPD_ASSIGN_OR_RETURN(const int64_t num_bytes, MessageMemory(*admitted.request, streams));
  TAOPD_ASSIGN_OR_RETURN(admitted.answer_memory,
                         ReserveMemory(*admitted.request, {.waiting_messages = num_bytes},
                                       *admitted.model, admitted.caller, &state));
  return admitted;
}

}  // namespace taopd
