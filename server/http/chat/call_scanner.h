// Reads the JSON object of a tool call as it arrives: {"name": "f", "arguments": {..}}, or with
// "parameters" instead of "arguments". Not thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace taopd {

class CallScanner {
 public:
  // Reads up to the end of the object and returns how many bytes it took. Nothing is taken once the
  // object is complete or has failed.
  size_t Push(std::string_view text);

  bool is_complete() const { return state_ == State::kComplete; }
  // Returns true if the text so far is not a JSON object.
  bool has_failed() const { return state_ == State::kFailed; }
  // The function's name; empty until it is complete.
  const std::string& name() const { return name_; }
  // Returns the text of the arguments that was read since the last call. An object or array comes
  // in pieces, any other value all at once.
  std::string TakeArguments() { return std::exchange(new_arguments_, {}); }

 private:
  enum class State { kBefore, kInside, kComplete, kFailed };
  enum class Value { kOther, kName, kArguments };

  void Take(char c);
  void TakeInString(char c);
  // Takes a byte of an object or array that is a value of the call, outside strings.
  void TakeInNested(char c);
  // Takes a byte of the call's own object, outside strings and nested values.
  void TakeInCall(char c);
  void EndString();
  void EndValue();

  State state_ = State::kBefore;
  int depth_ = 1;  // open brackets, including the call's own
  bool in_string_ = false;
  bool is_escaped_ = false;
  bool in_value_ = false;  // after the colon of a key of the outer object
  Value value_ = Value::kOther;
  std::string token_;  // the current string at depth 1, or a value that is neither object nor array
  std::string key_;
  std::string name_;
  std::string new_arguments_;
};

}  // namespace taopd
