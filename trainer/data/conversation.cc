#include "trainer/data/conversation.h"

#include "trainer/data/row_reader.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

bool IsOfAssistant(const Json& message) {
  return message.is_object() && message.contains("role") && message.at("role") == "assistant";
}

}  // namespace

absl::Status CheckNoTools(const Json& row) {
  const Json* tools = FindValue(row, "tools");
  if (tools == nullptr || tools->empty()) return absl::OkStatus();
  return InvalidArgument(
      "has \"tools\", which are not passed to the chat template: give prompt and response as text");
}

absl::StatusOr<bool> RemoveZeroWeight(Json* message) {
  if (!message->is_object() || !message->contains("weight")) return false;
  const Json weight = message->at("weight");
  message->erase("weight");
  if (weight.is_null() || weight == 1) return false;
  if (weight == 0) return true;
  return InvalidArgument("a message has the weight ", weight.dump(), ", which is neither 0 nor 1");
}

bool IsConversation(const Json& row, const ConversationKeys& keys) {
  return !keys.messages.empty() && row.is_object() && FindValue(row, keys.messages) != nullptr &&
         FindValue(row, keys.response) == nullptr &&
         FindValue(row, keys.response + "_ids") == nullptr;
}

absl::StatusOr<std::vector<Json>> SplitConversation(const Json& row, const ConversationKeys& keys,
                                                    AssistantTurns turns) {
  Json messages = *FindPath(row, keys.messages);
  if (!messages.is_array()) return InvalidArgument("\"", keys.messages, "\" is not a list");
  TAOPD_RETURN_IF_ERROR(CheckNoTools(row));
  if (messages.empty() || !IsOfAssistant(messages.back())) {
    return InvalidArgument("\"", keys.messages,
                           "\" does not end with a message of the assistant, which is learned");
  }
  std::vector<bool> is_learned;
  for (size_t i = 0; i < messages.size(); ++i) {
    TAOPD_ASSIGN_OR_RETURN(const bool has_zero_weight, RemoveZeroWeight(&messages[i]));
    const bool is_chosen = turns == AssistantTurns::kAll || i + 1 == messages.size();
    is_learned.push_back(is_chosen && !has_zero_weight && IsOfAssistant(messages[i]));
  }
  std::vector<Json> rows;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!is_learned[i]) continue;
    if (i == 0) {
      return InvalidArgument("\"", keys.messages,
                             "\" begins with a message of the assistant, which has no prompt");
    }
    Json& split = rows.emplace_back(row);
    split.erase(keys.messages);
    split[keys.prompt] = Json(messages.begin(), messages.begin() + static_cast<int64_t>(i));
    split[keys.response] = Json::array({messages[i]});
  }
  if (rows.empty()) {
    return InvalidArgument("\"", keys.messages, "\": the weight of every learned turn is 0");
  }
  return rows;
}

}  // namespace taopd
