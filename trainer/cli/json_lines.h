// Commands that answer each line of standard input, a JSON object, with one on standard output.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/exit_code.h"

namespace taopd {

// Calls `answer` for each line that is not blank and writes what it returns; for an error, and for
// a line that is not a JSON object, writes {"error": message} and goes on. Returns the exit code: 0
// when every line was answered, that of bad data otherwise. Lines longer than kMaxJsonlLineBytes
// are such errors.
//
// `read_keys`: the keys that `answer` reads; what a line has beside them (an id, a label) stands
// unchanged in front of its answer, and is an error where the answer has a key of that name. Empty:
// nothing is carried over, and `answer` says what it thinks of unknown keys.
int AnswerJsonLines(
    const std::function<absl::StatusOr<nlohmann::ordered_json>(const nlohmann::ordered_json& line)>&
        answer,
    const std::vector<std::string>& read_keys = {});

}  // namespace taopd
