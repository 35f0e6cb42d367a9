// The loop of subcommands that read a JSON object from each line of standard input and answer it
// with a line on standard output.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/run/exit_status.h"

namespace taopd {

// Calls `answer` for each line that is not blank and writes its result. For an error of `answer`, a
// line that is not a JSON object, and a line longer than kMaxJsonlLineBytes, it writes {"error":
// message} and continues. Returns EndsWith(kExitData) if a line was not answered.
//
// `read_keys` lists the keys that `answer` reads. Other members of a line (an id, a label) are
// copied in front of its answer; it is an error if the answer has a key of the same name. With an
// empty list nothing is copied, and `answer` decides about unknown keys.
absl::Status AnswerJsonLines(
    const std::function<absl::StatusOr<nlohmann::ordered_json>(const nlohmann::ordered_json& line)>&
        answer,
    const std::vector<std::string>& read_keys = {});

}  // namespace taopd
