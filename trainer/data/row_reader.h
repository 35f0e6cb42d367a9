// Reads the rows of a data file in JSON Lines or Parquet.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

enum class DataFormat { kJsonl, kParquet };
// Detects the format from the file's first bytes. A file whose name ends in .parquet counts as
// Parquet whatever it contains, and any other pipe as JSON Lines.
DataFormat DataFormatOf(const std::string& path);

// Calls `on_row` for each row with its number, counted from 1. In JSON Lines it is the line's
// number. Only the given `columns` (dotted paths) of a Parquet file are decoded. An error from
// `on_row` ends the reading. Errors, including those from `on_row`, name the file and the row.
absl::Status ReadRows(
    const std::string& path, const std::vector<std::string>& columns,
    const std::function<absl::Status(const nlohmann::ordered_json& row, int64_t number)>& on_row);

// Returns the value at a dotted path such as "reward_model.ground_truth", or null if there is none.
// A key whose name is the whole rest of the path takes precedence.
const nlohmann::ordered_json* FindPath(const nlohmann::ordered_json& row, const std::string& path);
// Returns the same, but nullptr for the JSON value null.
const nlohmann::ordered_json* FindValue(const nlohmann::ordered_json& row, const std::string& path);

// Returns a text, or the text of a number: without an exponent, and empty if it is not finite.
// Returns INVALID_ARGUMENT, which calls the value `key`, for anything else, and for a number beyond
// 64 bits, because JSON has dropped digits of it.
absl::StatusOr<std::string> ReadTextOrNumber(const nlohmann::ordered_json& value,
                                             const std::string& key);

// Reads a list of token ids, each below `num_ids`. Returns INVALID_ARGUMENT, which calls the list
// `key`, for anything else.
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const nlohmann::ordered_json& list,
                                                  const std::string& key, int64_t num_ids);

}  // namespace taopd
