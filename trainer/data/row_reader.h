// Rows of a data file, JSON Lines or Parquet, behind one function.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

enum class DataFormat { kJsonl, kParquet };
// By the file's first bytes; a file whose name ends in .parquet is Parquet whatever it holds.
DataFormat DataFormatOf(const std::string& path);

// Calls `row` with each row and its number from 1 (for JSON Lines: of the line). Of Parquet only
// `columns` (dotted paths) are decoded. Errors, also those of `row`, name the file and the row.
absl::Status ReadRows(
    const std::string& path, const std::vector<std::string>& columns,
    const std::function<absl::Status(const nlohmann::ordered_json& row, int64_t number)>& row);

// The value under a dotted path: a key of that very name, else step by step
// ("reward_model.ground_truth"). Null when there is none.
const nlohmann::ordered_json* FindPath(const nlohmann::ordered_json& row, const std::string& path);

}  // namespace taopd
