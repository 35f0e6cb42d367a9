// Rows of a Parquet file as JSON values, through Apache Arrow. Its headers stay in parquet.cc.
//
// Read are: booleans, integers, floating-point numbers, text, lists, structs and dictionary-encoded
// columns of these; any other type in a column that is asked for is refused by name. Only the
// columns asked for are decoded, in batches of bounded size. Files are checked as they are read (a
// truncated, foreign or damaged one is an error that names the file, and the column or row where it
// is known), text must be UTF-8.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// The first four bytes of every Parquet file; false for a file that cannot be read.
bool HasParquetMagic(const std::string& path);

struct ParquetOptions {
  int64_t batch_rows = 512;
  // Most memory for decoded columns; a batch that needs more is RESOURCE_EXHAUSTED.
  int64_t max_decoded_bytes = int64_t{2} << 30;
  // Most bytes of text and most values of one row (a small damaged file can claim gigabytes).
  int64_t max_row_bytes = int64_t{64} << 20;
  int64_t max_row_values = 1'000'000;
};

// One thread.
class ParquetReader {
 public:
  // NOT_FOUND when the file cannot be opened, DATA_LOSS when it is not (whole) Parquet.
  static absl::StatusOr<std::unique_ptr<ParquetReader>> Open(const std::string& path,
                                                             const ParquetOptions& options = {});
  virtual ~ParquetReader() = default;

  virtual int64_t num_rows() const = 0;
  // Dotted paths of the fields, structs by their members: "data_source",
  // "reward_model.ground_truth". A list is one field.
  virtual const std::vector<std::string>& fields() const = 0;

  // Calls `row` with each row, numbered from 1, until it returns an error. `columns` are dotted
  // paths of fields or of structs; empty: all. A path that the file lacks is left out of the rows;
  // INVALID_ARGUMENT when it has none of them. Errors, also those of `row`, are annotated with the
  // path of the file and "row N".
  virtual absl::Status ForEachRow(
      const std::vector<std::string>& columns,
      const std::function<absl::Status(const nlohmann::ordered_json& value, int64_t row)>& row) = 0;
};

}  // namespace taopd
