// Fuzz entry: a Parquet file. What opens gives all its rows or an error.
#include "common/io/parquet.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const taopd::testing::MemoryFile file({reinterpret_cast<const char*>(data), size});
  taopd::ParquetOptions options;
  options.max_decoded_bytes = 64 << 20;
  options.max_row_bytes = 1 << 20;
  options.max_row_values = 10'000;
  const auto reader = taopd::ParquetReader::Open(file.path(), options);
  if (!reader.ok()) {
    TAOPD_CHECK(!reader.status().message().empty());
    return 0;
  }
  // Rows without values cost nothing in a file: a few hundred of a claimed billion are enough here.
  constexpr int64_t kMaxRows = 300;
  int64_t num_rows = 0;
  const absl::Status status =
      (*reader)->ForEachRow({}, [&](const nlohmann::ordered_json& value, int64_t row) {
        TAOPD_CHECK_EQ(row, ++num_rows);
        TAOPD_CHECK(value.is_object());
        return row < kMaxRows ? absl::OkStatus() : absl::ResourceExhaustedError("enough");
      });
  if (status.ok()) TAOPD_CHECK_EQ(num_rows, (*reader)->num_rows());
  return 0;
}
