// Takes the calls of tools out of a model's text, as vLLM's parsers hermes and llama3_json do.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/chat/call_scanner.h"
#include "server/serving/serving_state.h"

namespace taopd {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON text, written as Python's json.dumps does
};

struct SplitAnswer {
  std::optional<std::string> content;  // nullopt if there are only calls
  std::vector<ToolCall> calls;
};

// Appends the value as Python's json.dumps with ensure_ascii=False writes it: a space after each
// comma and colon.
void AppendPythonJson(const nlohmann::ordered_json& value, std::string* out);

// Returns a new id for a call, like vLLM's.
std::string NewToolCallId();

// Splits a whole text. If anything that should be a call is malformed, all of the text is content.
SplitAnswer SplitToolCalls(ToolCallFormat format, const std::string& text);

// One step of a call that is streamed. The first step of a call has its name and no arguments.
struct ToolCallDelta {
  int64_t index = 0;  // index of the call in the answer
  std::optional<std::string> name;
  std::string arguments;  // the next piece of the JSON text, as the model writes it
};

struct AnswerDelta {
  std::string content;
  std::vector<ToolCallDelta> calls;
  bool empty() const { return content.empty() && calls.empty(); }
};

// Splits a text as it arrives. Text that may be the beginning of a tag is held back until more
// text decides. Text that begins as a call but never names a function becomes content. As in vLLM,
// text after the first call is dropped, and llama3_json finds calls only at the beginning of the
// text. Takes time in proportion to the text. Not thread-safe.
class ToolCallStream {
 public:
  explicit ToolCallStream(ToolCallFormat format)
      : format_(format),
        state_(format == ToolCallFormat::kHermes ? State::kContent : State::kStart) {}

  // Takes the next piece of the text; `is_last` is true once, for the last piece.
  AnswerDelta Push(std::string_view text, bool is_last);
  bool has_calls() const { return num_calls_ > 0; }

 private:
  enum class State {
    kStart,    // llama3_json: not decided yet
    kContent,  // before the first call
    kCall,
    kBetween,  // after a call
    kPlain,    // all that follows is content
  };

  // The functions below consume as much of pending_ as they can. They return false if they need
  // more text.
  bool Step(bool is_last, AnswerDelta* delta);
  bool Start(bool is_last);
  bool FindTag(bool is_last, AnswerDelta* delta);
  bool FindNextObject(AnswerDelta* delta);
  bool BeginObject();
  bool ReadCall(bool is_last, AnswerDelta* delta);
  void BeginCall(std::string_view opening);
  void Feed(std::string_view text, AnswerDelta* delta);
  void EndCall(AnswerDelta* delta);

  const ToolCallFormat format_;
  State state_;
  std::string pending_;  // text that is not used yet
  CallScanner scanner_;
  std::string raw_;  // text of the current call, while it has no name
  bool is_named_ = false;
  int64_t num_calls_ = 0;
};

// Answers whose text has been forced to be calls of tools (chat.h), as vLLM answers them: a JSON
// list of {"name", "parameters"}, or the arguments of one function.
enum class ForcedCalls {
  kNone,
  kList,      // tool_choice "required"
  kFunction,  // tool_choice names a function
};

// Splits a whole text. A list that is cut off has no calls; arguments are passed on as they are.
// `function` is the name of kFunction. The content is empty. REQUIRES: not kNone.
SplitAnswer SplitForcedCalls(ForcedCalls forced, const std::string& function,
                             const std::string& text);

// Takes the calls out of a text that comes in pieces. Not thread-safe.
class ForcedCallStream {
 public:
  ForcedCallStream(ForcedCalls forced, std::string function)
      : forced_(forced), function_(std::move(function)) {}

  AnswerDelta Push(std::string_view text);
  bool has_calls() const { return num_calls_ > 0; }

 private:
  const ForcedCalls forced_;
  const std::string function_;
  int64_t num_calls_ = 0;
  // The state of the current object of kList.
  bool in_object_ = false;
  bool is_named_ = false;
  CallScanner scanner_;
};

}  // namespace taopd
