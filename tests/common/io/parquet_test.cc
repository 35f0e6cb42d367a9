#include "common/io/parquet.h"

#include <fstream>

#include "common/base/random.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;

std::string Golden(const std::string& name) { return SourcePath("tests/common/io/golden/" + name); }

absl::StatusOr<std::vector<Json>> ReadAll(const std::string& path,
                                          const std::vector<std::string>& columns = {},
                                          const ParquetOptions& options = {}) {
  TAOPD_ASSIGN_OR_RETURN(auto reader, ParquetReader::Open(path, options));
  std::vector<Json> rows;
  TAOPD_RETURN_IF_ERROR(reader->ForEachRow(columns, [&](const Json& value, int64_t row) {
    rows.push_back(value);
    EXPECT_EQ(row, static_cast<int64_t>(rows.size()));
    return absl::OkStatus();
  }));
  return rows;
}

// Returns the rows that Python reads, restricted to the columns.
std::vector<Json> PythonRows(const std::string& name,
                             const std::vector<std::string>& columns = {}) {
  std::vector<Json> rows;
  std::ifstream lines(Golden(name));
  for (std::string line; std::getline(lines, line);) {
    const Json all = Json::parse(line);
    Json row = Json::object();
    for (const std::string& column : columns) row[column] = all.at(column);
    rows.push_back(columns.empty() ? all : row);
  }
  return rows;
}

TEST(ParquetTest, RowsAreWhatPythonReads) {
  ASSERT_OK_AND_ASSIGN(const auto rows, ReadAll(Golden("verl.parquet")));
  EXPECT_EQ(rows, PythonRows("verl.parquet.jsonl"));
  ASSERT_EQ(rows.size(), 7u);
  // Batches end inside and at the end of a row group.
  for (int64_t batch_rows : {1, 2, 3, 100}) {
    ASSERT_OK_AND_ASSIGN(const auto batched,
                         ReadAll(Golden("verl.parquet"), {}, {.batch_rows = batch_rows}));
    EXPECT_EQ(batched, rows) << batch_rows;
  }
}

TEST(ParquetTest, EveryTypeAndNulls) {
  const std::vector<std::string> columns = {"flag",  "i8",   "u64",      "i64",     "f32",
                                            "f64",   "text", "category", "nothing", "list",
                                            "lists", "pair", "struct"};
  ASSERT_OK_AND_ASSIGN(const auto rows, ReadAll(Golden("types.parquet"), columns));
  EXPECT_EQ(rows, PythonRows("types.parquet.jsonl", columns));
  EXPECT_EQ(rows[1]["u64"].get<uint64_t>(), UINT64_MAX);
}

TEST(ParquetTest, ATypeThatIsNotReadIsNamed) {
  EXPECT_ERROR(ReadAll(Golden("types.parquet")), kInvalidArgument,
               "column \"when\" has the type timestamp");
  EXPECT_OK(ReadAll(Golden("types.parquet"), {"text"}));  // not requested, not decoded
}

TEST(ParquetTest, FieldsAndColumns) {
  ASSERT_OK_AND_ASSIGN(const auto reader, ParquetReader::Open(Golden("verl.parquet")));
  EXPECT_EQ(reader->num_rows(), 7);
  EXPECT_EQ(reader->fields(), (std::vector<std::string>{
                                  "data_source", "prompt", "ability", "reward_model.ground_truth",
                                  "reward_model.style", "extra_info.index", "extra_info.split"}));
  ASSERT_OK_AND_ASSIGN(const auto rows, ReadAll(Golden("verl.parquet"),
                                                {"reward_model.ground_truth", "prompt", "answer"}));
  EXPECT_EQ(rows[3].size(), 2u);
  EXPECT_EQ(rows[3]["reward_model"].dump(), R"({"ground_truth":"6"})");
  EXPECT_ERROR(ReadAll(Golden("verl.parquet"), {"answer", "promp"}), kInvalidArgument,
               "has none of the columns \"answer\", \"promp\"; it has \"data_source\", \"prompt\"");
}

TEST(ParquetTest, AFileWithoutColumns) {
  // Thrift: version 1, a schema "schema" without children, no rows, no row groups.
  const std::string_view footer("\x15\x02\x19\x1c\x48\x06schema\x15\0\0\x16\0\x19\x0c\0", 21);
  const TempDir dir;
  WriteFile(dir.File("empty.parquet"), Concat("PAR1", footer, std::string("\x15\0\0\0PAR1", 8)));
  for (const std::vector<std::string>& columns : {{}, std::vector<std::string>{"prompt"}}) {
    EXPECT_ERROR(ReadAll(dir.File("empty.parquet"), columns), kInvalidArgument,
                 "empty.parquet: has no columns");
  }
}

TEST(ParquetTest, AnErrorOfTheRowIsPlaced) {
  ASSERT_OK_AND_ASSIGN(const auto reader, ParquetReader::Open(Golden("verl.parquet")));
  int64_t calls = 0;
  EXPECT_ERROR(reader->ForEachRow({},
                                  [&](const Json&, int64_t row) {
                                    ++calls;
                                    return row == 5 ? InvalidArgument("no good") : absl::OkStatus();
                                  }),
               kInvalidArgument, "verl.parquet: row 5: no good");
  EXPECT_EQ(calls, 5);
}

TEST(ParquetTest, Limits) {
  ParquetOptions options = {.max_row_values = 6};
  EXPECT_ERROR(ReadAll(Golden("verl.parquet"), {"prompt"}, options), kResourceExhausted,
               "row 1: column \"prompt\": more than the limit of 6 values");
  options = {};
  options.max_row_bytes = 20;
  EXPECT_ERROR(ReadAll(Golden("verl.parquet"), {"prompt"}, options), kResourceExhausted,
               "more than the limit of 20 bytes");
  options = {};
  options.max_decoded_bytes = 1000;
  EXPECT_ERROR(ReadAll(Golden("verl.parquet"), {"prompt"}, options), kResourceExhausted,
               "verl.parquet");
}

TEST(ParquetTest, FilesThatAreNotParquet) {
  TempDir dir;
  EXPECT_ERROR(ReadAll(dir.File("absent")), kNotFound, "absent");
  std::filesystem::create_symlink("loop", dir.File("loop"));
  EXPECT_ERROR(ReadAll(dir.File("loop")), kInvalidArgument, "loop");
  WriteFile(dir.File("empty"), "");
  EXPECT_ERROR(ReadAll(dir.File("empty")), kDataLoss, "empty");
  WriteFile(dir.File("text"), std::string(1000, 'x'));
  EXPECT_ERROR(ReadAll(dir.File("text")), kDataLoss, "text");
  EXPECT_FALSE(ReadAll(dir.File("")).ok());  // a directory
  EXPECT_TRUE(HasParquetMagic(Golden("verl.parquet")));
  EXPECT_FALSE(HasParquetMagic(dir.File("text")));
  EXPECT_FALSE(HasParquetMagic(dir.File("empty")));
  EXPECT_FALSE(HasParquetMagic(dir.File("absent")));
  ASSERT_OK_AND_ASSIGN(const auto rows, ReadAll(Golden("empty.parquet"), {"text"}));
  EXPECT_TRUE(rows.empty());
}

TEST(ParquetTest, EveryTruncationIsAnError) {
  TempDir dir;
  const std::string whole = ReadFile(Golden("verl.parquet"));
  for (size_t size = 0; size < whole.size(); size += 29) {
    WriteFile(dir.File("cut"), whole.substr(0, size));
    EXPECT_ERROR(ReadAll(dir.File("cut")), kDataLoss, "cut");
  }
}

TEST(ParquetTest, ThePublishedFiles) {
  if (SharedData("dapo-math-17k-processed.parquet").empty())
    GTEST_SKIP() << "shared data is absent";
  const std::vector<std::string> columns = {"prompt", "reward_model.ground_truth", "data_source"};
  for (const auto& [name, size] :
       {std::pair<const char*, size_t>{"dapo-math-17k-processed.parquet", 17917},
        {"valid_math500.parquet", 500},
        {"valid_without_mmlu_pro.parquet", 2762}}) {
    ASSERT_OK_AND_ASSIGN(const auto rows, ReadAll(SharedData(name), columns));
    ASSERT_EQ(rows.size(), size) << name;
    for (const Json& row : rows) {
      ASSERT_TRUE(row["prompt"][0]["content"].is_string());
      ASSERT_TRUE(row["reward_model"]["ground_truth"].is_string());
    }
  }
}

}  // namespace
}  // namespace taopd::testing
