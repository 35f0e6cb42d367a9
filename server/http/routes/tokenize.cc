#include "server/http/routes/tokenize.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "common/io/jsonl.h"
#include "server/generation/engine_requests.h"
#include "server/http/chat/chat.h"
#include "server/http/request/common_fields.h"
#include "server/http/request/request_body.h"
#include "server/http/response/answer_json.h"
#include "server/http/response/token_text.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kBytesPerId = 11;  // 7 digits, an empty string and two commas
// The text of an answer, and the answer itself twice: its old memory and its new one as it grows.
constexpr int64_t kCopies = 3;

absl::Status CheckModel(JsonFields& fields, const ServedModel& model) {
  const std::string name = fields.Text("model").value_or("");
  if (!name.empty()) TAOPD_RETURN_IF_ERROR(CheckModelName(name, model));
  if (model.tokenizer == nullptr)
    return InvalidArgument(
        "the model directory has no tokenizer.json: there is nothing to tokenize with");
  return absl::OkStatus();
}

// Reserves the memory of an answer with the ids and, unless it is null, with what `spell` returns
// for each of them. Returns INVALID_ARGUMENT if no answer may be that large.
absl::Status HoldAnswer(const std::vector<int32_t>& ids,
                        const std::function<std::string(int32_t)>& spell, const Caller& caller,
                        ServingState& state) {
  int64_t num_bytes = kBytesPerId * static_cast<int64_t>(ids.size());
  std::unordered_map<int32_t, int64_t> bytes_of;  // the ids of the vocabulary as JSON strings
  for (size_t i = 0; spell && i < ids.size(); ++i) {
    auto known = bytes_of.find(ids[i]);
    if (known == bytes_of.end()) {
      const std::string text = spell(ids[i]);
      if (text.empty()) continue;
      known = bytes_of.emplace(ids[i], static_cast<int64_t>(JsonText(text).size())).first;
    }
    num_bytes += known->second;
  }
  if (num_bytes > kMaxAnswerBytes) {
    return InvalidArgument("the answer for ", ids.size(), " tokens may take ", num_bytes,
                           " bytes, more than ", kMaxAnswerBytes, "; send them in parts");
  }
  TAOPD_ASSIGN_OR_RETURN(auto memory, state.ReserveAnswer(num_bytes * kCopies, caller.client));
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
  const Tokenizer& tokenizer = *model->tokenizer;
  std::function<std::string(int32_t)> spell;
  if (request.return_token_strs) spell = [&](int32_t id) { return tokenizer.IdToToken(id); };
  TAOPD_RETURN_IF_ERROR(HoldAnswer(request.token_ids, spell, caller, state));
  std::string out = Concat("{\"count\":", request.token_ids.size(),
                           ",\"max_model_len\":", model->limits.max_model_len,
                           ",\"tokens\":", IdsJson(request.token_ids), ",\"token_strs\":");
  if (!request.return_token_strs) return out + "null}";
  AppendList(request.token_ids.size(), &out,
             [&](size_t i) { out += JsonText(spell(request.token_ids[i])); });
  return out + "}";
}

absl::StatusOr<Answer> RunDetokenize(const std::string& body, const Caller& caller,
                                     ServingState& state) {
  TAOPD_ASSIGN_OR_RETURN(const auto model, state.Admit());
  std::vector<int32_t> token_ids;
  TAOPD_RETURN_IF_ERROR(ReadBodyInTurn(body, caller, state, "/detokenize", [&](JsonFields& fields) {
    return ReadDetokenizeRequest(fields, *model, &token_ids);
  }));
  const Tokenizer& tokenizer = *model->tokenizer;
  const auto bytes = [&](int32_t id) { return tokenizer.TokenBytes(id); };
  TAOPD_RETURN_IF_ERROR(HoldAnswer(token_ids, bytes, caller, state));
  const ordered_json text = tokenizer.Decode(token_ids, /*skip_special_tokens=*/false);
  return "{\"prompt\":" + JsonText(text) + "}";
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
