// Reads the rows of a data file, be it JSON Lines or Parquet.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

enum class DataFormat { kJsonl, kParquet };
// Decides by the file's first bytes. A file whose name ends in .parquet is Parquet whatever it
// holds.
DataFormat DataFormatOf(const std::string& path);

// Calls `row` with each row and its number, which counts from 1. For JSON Lines it is the number of
// the line. Only the `columns` (dotted paths) of a Parquet file are decoded. An error from `row`
// ends the reading. Errors, including those from `row`, name the file and the row.
absl::Status ReadRows(
    const std::string& path, const std::vector<std::string>& columns,
    const std::function<absl::Status(const nlohmann::ordered_json& row, int64_t number)>& row);

// Returns the value under a dotted path such as "reward_model.ground_truth", or null if there is
// none. A key that has the whole rest of the path as its name comes first.
const nlohmann::ordered_json* FindPath(const nlohmann::ordered_json& row, const std::string& path);

}  // namespace taopd
