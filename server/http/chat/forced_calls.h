// Answers whose text has been forced to be calls of tools (tool_choice.h), as vLLM answers them: a
// JSON list of {"name", "parameters"}, or the arguments of one function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/chat/call_scanner.h"
#include "server/http/chat/tool_calls.h"

namespace taopd {

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
  void PushObject(std::string_view text, AnswerDelta* delta);

  const ForcedCalls forced_;
  const std::string function_;
  int64_t num_calls_ = 0;
  // The state of the present object of kList.
  bool in_object_ = false;
  bool is_named_ = false;
  CallScanner scanner_;
};

}  // namespace taopd
