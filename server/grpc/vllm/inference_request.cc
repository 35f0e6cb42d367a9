#include "server/grpc/vllm/inference_request.h"

#include <algorithm>
#include <utility>

#include "common/base/random.h"
#include "common/engine/request_validation.h"
#include "common/text/stop_strings.h"
#include "common/wire/teacher_protocol.h"
#include "server/grpc/generate/sampling_conversion.h"
#include "server/serving/sampling_fields.h"

namespace taopd {
namespace {

// Of a message that waits to be sent, with a token and its text.
constexpr int64_t kBytesOfTokenMessage = 512;
constexpr int64_t kBytesPerCandidate = 32;

absl::Status RefuseUnsupported(const vllm::GenerateRequest& request) {
  const auto refuse = [](bool is_set, const char* name) {
    return is_set ? InvalidArgument(name, " is not supported") : absl::OkStatus();
  };
  TAOPD_RETURN_IF_ERROR(refuse(request.truncate_prompt_tokens() != 0, "truncate_prompt_tokens"));
  TAOPD_RETURN_IF_ERROR(refuse(request.sampling().num_sequences() > 1, "num_sequences > 1"));
  TAOPD_RETURN_IF_ERROR(refuse(request.priority() != 0, "priority"));
  TAOPD_RETURN_IF_ERROR(refuse(request.media_size() > 0, "media"));
  TAOPD_RETURN_IF_ERROR(refuse(!request.lora_name().empty(), "lora_name"));
  const vllm::ResponseOptions& response = request.response();
  TAOPD_RETURN_IF_ERROR(
      refuse(response.prompt_candidates().has_token_ids(), "prompt_candidates token_ids selector"));
  TAOPD_RETURN_IF_ERROR(
      refuse(response.output_candidates().has_token_ids(), "output_candidates token_ids selector"));
  TAOPD_RETURN_IF_ERROR(
      refuse(request.kv().kv_transfer_params().fields_size() > 0, "kv_transfer_params"));
  return refuse(request.kv().ec_transfer_params().fields_size() > 0, "ec_transfer_params");
}

absl::Status ReadPrompt(const vllm::GenerateRequest& request, const ServedModel& model,
                        std::vector<int32_t>* token_ids) {
  switch (request.prompt_case()) {
    case vllm::GenerateRequest::kTokenIds: {
      TAOPD_ASSIGN_OR_RETURN(*token_ids, TokenIds("token_ids", request.token_ids().ids()));
      return absl::OkStatus();
    }
    case vllm::GenerateRequest::kText:
      if (model.tokenizer == nullptr)
        return InvalidArgument("text: the model has no tokenizer; send token_ids");
      *token_ids = model.tokenizer->Encode(request.text(), /*add_special_tokens=*/true);
      return absl::OkStatus();
    default:
      return InvalidArgument("prompt is required");
  }
}

// In this message 0 means "off" for the fields whose neutral value is another.
absl::Status ReadSampling(const vllm::GenerateRequest& request, SamplingParams* sampling) {
  const auto set = [sampling](bool is_set, const char* name, double value) {
    return is_set ? SetSampling(name, value, sampling) : absl::OkStatus();
  };
  const vllm::RandomSampling& random = request.sampling();
  const vllm::DecodingParameters& decoding = request.decoding();
  TAOPD_RETURN_IF_ERROR(set(true, "temperature", request.temperature()));
  TAOPD_RETURN_IF_ERROR(set(random.top_k() != 0, "top_k", random.top_k()));
  TAOPD_RETURN_IF_ERROR(set(random.top_p() != 0.0f, "top_p", random.top_p()));
  TAOPD_RETURN_IF_ERROR(set(random.min_p() != 0.0f, "min_p", random.min_p()));
  TAOPD_RETURN_IF_ERROR(set(true, "presence_penalty", decoding.presence_penalty()));
  TAOPD_RETURN_IF_ERROR(set(true, "frequency_penalty", decoding.frequency_penalty()));
  TAOPD_RETURN_IF_ERROR(set(decoding.repetition_penalty() != 0.0f, "repetition_penalty",
                            decoding.repetition_penalty()));
  v1::SamplingOptions ids;
  *ids.mutable_logit_bias() = decoding.logit_bias();
  ids.mutable_allowed_token_ids()->CopyFrom(decoding.allowed_token_ids());
  TAOPD_RETURN_IF_ERROR(ApplySamplingOptions(ids, sampling));
  sampling->seed =
      SequenceSeed(random.has_seed() ? std::optional<uint64_t>(static_cast<uint64_t>(random.seed()))
                                     : std::nullopt,
                   0);
  return absl::OkStatus();
}

std::optional<GrammarSpec> GrammarOf(const vllm::DecodingParameters& decoding) {
  using Decoding = vllm::DecodingParameters;
  using Kind = GrammarSpec::Kind;
  switch (decoding.structured_output_case()) {
    case Decoding::kJson:
      return GrammarSpec{Kind::kJsonSchema, decoding.json()};
    case Decoding::kRegex:
      return GrammarSpec{Kind::kRegex, decoding.regex()};
    case Decoding::kChoice:
      return GrammarOfChoices(
          {decoding.choice().choices().begin(), decoding.choice().choices().end()});
    case Decoding::kGrammar:
      return GrammarOfText(decoding.grammar());
    case Decoding::kJsonObject:
      if (!decoding.json_object()) return std::nullopt;
      return GrammarOfAnyObject();
    case Decoding::kStructuralTag:
      return GrammarSpec{Kind::kStructuralTag, decoding.structural_tag()};
    case Decoding::STRUCTURED_OUTPUT_NOT_SET:
      break;
  }
  return std::nullopt;
}

absl::Status ReadStopping(const vllm::StoppingCriteria& stopping, const ServedModel& model,
                          InferenceRequest* out, InferenceAnswerOptions* options) {
  SamplingParams& sampling = *out->sampling;
  const EngineLimits& limits = model.limits;
  const int64_t left = std::min(limits.max_model_len, limits.max_generation_len) -
                       static_cast<int64_t>(out->token_ids.size());
  sampling.max_new_tokens =
      stopping.max_new_tokens() != 0 ? stopping.max_new_tokens() : std::max<int64_t>(left, 1);
  sampling.min_tokens = stopping.min_new_tokens();
  TAOPD_ASSIGN_OR_RETURN(sampling.stop_token_ids,
                         TokenIds("stop_token_ids", stopping.stop_token_ids()));
  sampling.ignore_eos = stopping.ignore_eos();
  options->stop_strings.assign(stopping.stop_strings().begin(), stopping.stop_strings().end());
  options->include_stop_strings = stopping.include_stop_strings();
  if (!options->stop_strings.empty() && model.tokenizer == nullptr)
    return InvalidArgument("stop_strings: the model has no tokenizer");
  return ValidateStopStrings(options->stop_strings);
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
                          InferenceRequest* out, InferenceAnswerOptions* options) {
  options->prompt_ids = response.prompt_token_ids();
  options->prompt_logprobs = response.prompt_logprobs();
  options->text = !response.has_output_text() || response.output_text();
  options->skip_special_tokens =
      !response.has_skip_special_tokens() || response.skip_special_tokens();
  options->ids = response.output_token_ids();
  options->logprobs = response.output_logprobs();
  options->candidates = response.has_output_candidates();
  if (model.tokenizer == nullptr) options->text = false;  // there is none: the text stays empty
  SamplingParams& sampling = *out->sampling;
  sampling.log_probs = false;
  sampling.raw_log_probs = sampling.ranks = options->logprobs;
  sampling.top_log_probs_mode = LogProbsMode::kRaw;
  TAOPD_ASSIGN_OR_RETURN(
      sampling.num_log_probs,
      NumCandidates("output_candidates", response.output_candidates(), model.limits));
  if (!options->prompt_logprobs || out->token_ids.size() < 2) return absl::OkStatus();
  ScoreParams score;
  score.top_k = 1;
  if (response.has_prompt_candidates()) {
    TAOPD_ASSIGN_OR_RETURN(score.top_k, NumCandidates("prompt_candidates",
                                                      response.prompt_candidates(), model.limits));
  }
  score.rank = true;
  out->score = std::move(score);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdmittedInference> AdmitInference(const vllm::GenerateRequest& request,
                                                 absl::Time deadline, const std::string& client,
                                                 ServingState& state, int64_t num_sequences) {
  AdmittedInference admitted;
  TAOPD_ASSIGN_OR_RETURN(admitted.model, state.Admit());
  const ServedModel& model = *admitted.model;
  if (!request.model().empty() && request.model() != model.name)
    return absl::NotFoundError(Concat("model `", request.model().substr(0, 200), "` not found"));
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return InvalidArgument("request_id has ", request.request_id().size(), " bytes, the limit is ",
                           kMaxRequestIdBytes);
  }
  TAOPD_RETURN_IF_ERROR(RefuseUnsupported(request));
  TAOPD_RETURN_IF_ERROR(CheckSalt(request.kv().cache_salt()));
  InferenceRequest& out = admitted.request;
  out.request_id = request.request_id();
  out.client = client;
  out.deadline = deadline;
  out.cache_salt = request.kv().cache_salt();
  // A salt that nobody else has.
  if (request.kv().bypass_prefix_cache()) out.cache_salt += Concat(" bypass ", FreshBits());
  out.sampling.emplace();
  TAOPD_RETURN_IF_ERROR(ReadPrompt(request, model, &out.token_ids));
  TAOPD_RETURN_IF_ERROR(ReadSampling(request, &*out.sampling));
  TAOPD_RETURN_IF_ERROR(ReadStopping(request.stopping(), model, &out, &admitted.options));
  TAOPD_RETURN_IF_ERROR(ReadResponse(request.response(), model, &out, &admitted.options));
  if (request.decoding().has_choice() && request.decoding().choice().choices().empty())
    return InvalidArgument("structured_output: choice cannot be empty");
  admitted.grammar = GrammarOf(request.decoding());
  if (admitted.grammar && model.grammar_compiler == nullptr)
    return InvalidArgument("structured_output: the model has no tokenizer");
  TAOPD_RETURN_IF_ERROR(ValidateRequest(out, model.limits));

  const int64_t num_prompt = static_cast<int64_t>(out.token_ids.size());
  const int64_t num_new = out.sampling->max_new_tokens;
  const int64_t prompt_bytes =
      num_prompt * (16 + kBytesPerCandidate * (out.score ? out.score->top_k + 1 : 0));
  if (prompt_bytes > kMaxMessageBytes) {
    return InvalidArgument("prompt_candidates for ", num_prompt, " tokens may need a message of ",
                           prompt_bytes, " bytes, the limit is ", kMaxMessageBytes);
  }
  const int64_t output_bytes =
      num_new * (kBytesOfTokenMessage + kBytesPerCandidate * out.sampling->num_log_probs);
  TAOPD_ASSIGN_OR_RETURN(const int64_t copies_bytes,
                         CopiesBytes(out, admitted.options.stop_strings, num_sequences));
  TAOPD_ASSIGN_OR_RETURN(
      admitted.answer_memory,
      state.ReserveAnswer(prompt_bytes + num_sequences * output_bytes + copies_bytes, client));
  return admitted;
}

}  // namespace taopd
