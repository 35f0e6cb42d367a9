#include "server/http/routes/tokenize.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/io/jsonl.h"
#include "server/http/chat/chat.h"
#include "server/http/request/common_fields.h"
#include "server/http/request/request_body.h"
#include "server/http/response/answer_json.h"
#include "server/http/response/token_text.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

// An estimate of the bytes that one token takes in an answer with its string.
constexpr int64_t kBytesPerToken = 64;

absl::Status CheckModel(JsonFields& fields, const ServedModel& model) {
  const std::string name = fields.Text("model").value_or("");
  if (!name.empty()) TAOPD_RETURN_IF_ERROR(CheckModelName(name, model));
  if (model.tokenizer == nullptr)
    return InvalidArgument(
        "the model directory has no tokenizer.json: there is nothing to tokenize with");
  return absl::OkStatus();
}

// Reserves the memory of the answer.
absl::Status HoldAnswer(size_t num_tokens, const Caller& caller, ServingState& state) {
  TAOPD_ASSIGN_OR_RETURN(
      auto memory,
      state.ReserveAnswer(static_cast<int64_t>(num_tokens) * kBytesPerToken, caller.client));
  caller.hold_memory(std::move(memory));
  return absl::OkStatus();
}

// Returns the value with each special token as its text. In the file, a special token is its text
// or an object with the text as content.
ordered_json SpecialTokensAsText(const ordered_json& value) {
  if (value.is_object() && value.contains("content")) return value["content"];
  if (!value.is_structured()) return value;
  ordered_json plain = value.is_array() ? ordered_json::array() : ordered_json::object();
  for (const auto& [key, item] : value.items()) {
    if (value.is_array()) {
      plain.push_back(SpecialTokensAsText(item));
    } else {
      plain[key] = SpecialTokensAsText(item);
    }
  }
  return plain;
}

}  // namespace

absl::Status ReadTokenizeRequest(JsonFields& fields, const ServedModel& model,
                                 TokenizeRequest* request) {
  TAOPD_RETURN_IF_ERROR(CheckModel(fields, model));
  const bool is_chat = fields.Find("messages") != nullptr;
  const ordered_json* prompt = fields.Find("prompt");
  request->return_token_strs = fields.Bool("return_token_strs").value_or(false);
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(!is_chat);
  if (is_chat && prompt == nullptr) {
    const absl::StatusOr<RenderedChat> rendered = RenderChat(fields, model);
    TAOPD_RETURN_IF_ERROR(fields.error());
    TAOPD_RETURN_IF_ERROR(rendered.status());
    request->token_ids = model.tokenizer->Encode(rendered->text, add_special_tokens);
    return absl::OkStatus();
  }
  TAOPD_RETURN_IF_ERROR(fields.error());
  if (prompt == nullptr) return MissingField("prompt");
  if (!prompt->is_string()) return WrongType("prompt", "a valid string");
  request->token_ids =
      model.tokenizer->Encode(prompt->get_ref<const std::string&>(), add_special_tokens);
  return absl::OkStatus();
}

absl::Status ReadDetokenizeRequest(JsonFields& fields, const ServedModel& model,
                                   std::vector<int32_t>* token_ids) {
  TAOPD_RETURN_IF_ERROR(CheckModel(fields, model));
  const bool given = fields.Find("tokens") != nullptr;
  const std::vector<int64_t> ids = fields.Integers("tokens");
  TAOPD_RETURN_IF_ERROR(fields.error());
  if (!given) return MissingField("tokens");
  for (const int64_t id : ids) {
    if (id < 0) return WrongType("tokens", "greater than or equal to 0");
    // Ids that no vocabulary has decode to nothing.
    token_ids->push_back(static_cast<int32_t>(std::min<int64_t>(id, INT32_MAX)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Answer> RunTokenize(const std::string& body, const Caller& caller,
                                   ServingState& state) {
  TAOPD_ASSIGN_OR_RETURN(const auto model, state.Admit());
  TokenizeRequest request;
  TAOPD_RETURN_IF_ERROR(ReadBodyInTurn(body, caller, state, "/tokenize", [&](JsonFields& fields) {
    return ReadTokenizeRequest(fields, *model, &request);
  }));
  TAOPD_RETURN_IF_ERROR(HoldAnswer(request.token_ids.size(), caller, state));
  std::string out = Concat("{\"count\":", request.token_ids.size(),
                           ",\"max_model_len\":", model->limits.max_model_len,
                           ",\"tokens\":", IdsJson(request.token_ids), ",\"token_strs\":");
  if (!request.return_token_strs) return out + "null}";
  AppendList(request.token_ids.size(), &out, [&](size_t i) {
    out += JsonString(model->tokenizer->IdToToken(request.token_ids[i]));
  });
  return out + "}";
}

absl::StatusOr<Answer> RunDetokenize(const std::string& body, const Caller& caller,
                                     ServingState& state) {
  TAOPD_ASSIGN_OR_RETURN(const auto model, state.Admit());
  std::vector<int32_t> token_ids;
  TAOPD_RETURN_IF_ERROR(ReadBodyInTurn(body, caller, state, "/detokenize", [&](JsonFields& fields) {
    return ReadDetokenizeRequest(fields, *model, &token_ids);
  }));
  TAOPD_RETURN_IF_ERROR(HoldAnswer(token_ids.size(), caller, state));
  const std::string text = model->tokenizer->Decode(token_ids, /*skip_special_tokens=*/false);
  return "{\"prompt\":" + JsonString(text) + "}";
}

absl::StatusOr<Answer> DescribeTokenizer(const ServedModel& model) {
  if (model.tokenizer == nullptr)
    return absl::NotFoundError("the model directory has no tokenizer.json");
  ordered_json info = ordered_json::object();
  if (!model.tokenizer_config_json.empty()) {
    const auto config = ParseOrderedJson(model.tokenizer_config_json, "tokenizer_config.json");
    if (!config.ok()) return Internal(config.status().message());
    info = SpecialTokensAsText(*config);
    info.erase("vocab_file");
    info.erase("merges_file");
  }
  if (!info.contains("tokenizer_class")) info["tokenizer_class"] = "PreTrainedTokenizerFast";
  return JsonText(info);
}

}  // namespace taopd
