// The loop of subcommands that read a JSON object from each line of standard input and answer it
// with a line on standard output.
#pragma once

#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "trainer/run/exit_status.h"

namespace taopd {

// Calls `answer` for each line that is not blank and writes its result. For an error of `answer`, a
// line that is not a JSON object, and a line longer than kMaxJsonlLineBytes, it writes {"error":
// message} and continues. Returns WithoutMessage(kExitData) if a line was not answered.
//
// `read_keys` lists the keys that `answer` reads. Other members of a line (an id, a label) are
// copied in front of its answer; it is an error if the answer has a key of the same name. With an
// empty list nothing is copied, and `answer` decides about unknown keys.
using AnswerObject =
    std::function<absl::StatusOr<nlohmann::ordered_json>(const nlohmann::ordered_json& line)>;
absl::Status AnswerJsonLines(const AnswerObject& answer,
                             const std::vector<std::string>& read_keys = {});

// Return INVALID_ARGUMENT if a line has a key that is not among `known`, and if the value of a flag
// is not true or false. A flag that the line lacks is `absent`.
absl::Status CheckKeys(const nlohmann::ordered_json& line,
                       std::initializer_list<std::string_view> known);
absl::StatusOr<bool> ReadFlag(const nlohmann::ordered_json& line, const char* name, bool absent);

}  // namespace taopd
