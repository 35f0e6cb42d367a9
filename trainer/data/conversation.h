// Conversations as supervised data, the rows of TRL and of OpenAI's fine-tuning:
//
//   {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}
//
// A turn of the assistant becomes a row with a prompt, the messages before it, and a response, the
// message itself. That is TRL's conversational prompt-completion form, which prompt_reader.h reads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/settings.h"

namespace taopd {

// The turns of the assistant that are learned.
enum class AssistantTurns {
  kLast,  // the last one, as TRL learns the completion of a conversational prompt
  kAll,   // each one, with the messages before it as its prompt
};
inline EnumNames<AssistantTurns> NamesOf(AssistantTurns) {
  return {{AssistantTurns::kLast, "last"}, {AssistantTurns::kAll, "all"}};
}

struct ConversationKeys {
  std::string messages;  // the key of a conversation; if empty, rows hold none
  std::string prompt;    // the keys of the rows that SplitConversation returns
  std::string response;
};

// Returns INVALID_ARGUMENT if the row has tools, which are not passed to templates.
absl::Status CheckNoTools(const nlohmann::ordered_json& row);

// Removes OpenAI's "weight", which is not for the template, and returns whether it is 0. Returns
// INVALID_ARGUMENT if it is neither 0 nor 1.
absl::StatusOr<bool> RemoveZeroWeight(nlohmann::ordered_json* message);

// Returns whether `row` is a conversation: it has messages, and neither a response nor its ids.
bool IsConversation(const nlohmann::ordered_json& row, const ConversationKeys& keys);

// Returns one row for each learned turn, with the other members of `row`. A message of the
// assistant with "weight": 0 is not learned, as in OpenAI's rows; "weight" is removed from all
// messages. Returns INVALID_ARGUMENT if the messages are not a list that ends with the assistant's
// turn, if no turn is learned, or if the row has tools.
absl::StatusOr<std::vector<nlohmann::ordered_json>> SplitConversation(
    const nlohmann::ordered_json& row, const ConversationKeys& keys, AssistantTurns turns);

}  // namespace taopd
