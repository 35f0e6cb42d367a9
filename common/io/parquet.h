// The rows of a Parquet file as JSON values. The file is read through Apache Arrow, whose headers
// stay in parquet.cc.
//
// Supported columns hold:
//   booleans, integers, text, floating-point numbers (a float32 of 0.1 is read as 0.1)
//   lists and structs of these
//   dictionary-encoded values of these
// A requested column of another type is refused by name. Only the requested columns are decoded, in
// batches of bounded size. Files are checked while they are read: a truncated, foreign or damaged
// file is an error that names the file, and the column or row if it is known. Text must be UTF-8.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// Returns whether a regular file starts with the four bytes that start every Parquet file. Returns
// false, without reading, for a pipe, and for a file that cannot be read.
bool HasParquetMagic(const std::string& path);

struct ParquetOptions {
  int64_t batch_rows = 512;
  // The limit on memory for decoded columns. A batch that needs more is RESOURCE_EXHAUSTED.
  int64_t max_decoded_bytes = int64_t{2} << 30;
  // The limits on one row's bytes of text and number of values. A small damaged file can claim
  // gigabytes.
  int64_t max_row_bytes = int64_t{64} << 20;
  int64_t max_row_values = 1'000'000;
};

// Not thread-safe.
class ParquetReader {
 public:
  // Returns the code of FileError (atomic_file.h) if the file cannot be opened, and DATA_LOSS if it
  // is not a whole Parquet file.
  static absl::StatusOr<std::unique_ptr<ParquetReader>> Open(const std::string& path,
                                                             const ParquetOptions& options = {});
  virtual ~ParquetReader() = default;

  virtual int64_t num_rows() const = 0;
  // The dotted paths of the fields. A struct is listed by its members: "data_source",
  // "reward_model.ground_truth". A list is one field.
  virtual const std::vector<std::string>& fields() const = 0;

  // Calls `row` with each row, numbered from 1, until it returns an error. `columns` are dotted
  // paths of fields or of structs; if it is empty, all columns are read. A path that the file does
  // not have is absent from the rows; if the file has none of the paths, the result is
  // INVALID_ARGUMENT. Errors, including those that `row` returns, name the file's path and "row N".
  virtual absl::Status ForEachRow(
      const std::vector<std::string>& columns,
      const std::function<absl::Status(const nlohmann::ordered_json& value, int64_t row)>& row) = 0;
};

}  // namespace taopd
