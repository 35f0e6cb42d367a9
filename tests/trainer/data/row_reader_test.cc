#include "trainer/data/row_reader.h"

#include <unistd.h>

#include <cmath>

#include "common/base/file_descriptor.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;

TEST(FindPath, KeysAndPaths) {
  const Json row =
      Json::parse(R"({"a":{"b":{"c":1}},"x.y":2,"a.b":3,"d":{"e.f":4},"n":null,"t":"text"})");
  EXPECT_EQ(*FindPath(row, "x.y"), 2);
  EXPECT_EQ(*FindPath(row, "a.b"), 3);  // a key with exactly that name takes precedence
  EXPECT_EQ(*FindPath(row, "a.b.c"), 1);
  EXPECT_EQ(*FindPath(row, "d.e.f"), 4);
  EXPECT_TRUE(FindPath(row, "n")->is_null());
  for (const char* absent : {"q", "a.q", "t.q", "n.q", "a.b.c.d", "", ".", "a."}) {
    EXPECT_EQ(FindPath(row, absent), nullptr) << absent;
  }
  EXPECT_EQ(FindPath(Json(5), "a"), nullptr);
}

TEST(ReadTextOrNumber, DigitsAreKept) {
  const std::pair<Json, std::string> cases[] = {{"1e-05", "1e-05"},
                                                {12.0, "12.0"},
                                                {-2.5e-7, "-0.00000025"},
                                                {1e18, "1000000000000000000.0"},
                                                {UINT64_MAX, "18446744073709551615"},
                                                {5e-324, "0." + std::string(323, '0') + "5"},
                                                {std::nan(""), ""}};
  for (const auto& [json, text] : cases) {
    ASSERT_OK_AND_ASSIGN(const std::string read, ReadTextOrNumber(json, "a"));
    EXPECT_EQ(read, text);
  }
  for (const char* json : {"18446744073709551616", "-9223372036854775809"})
    EXPECT_ERROR(ReadTextOrNumber(Json::parse(json), "a"), kInvalidArgument, "give it as text");
  EXPECT_ERROR(ReadTextOrNumber(true, "a"), kInvalidArgument, "\"a\" is neither text");
}

TEST(ReadRows, TheFormatIsThatOfTheBytes) {
  TempDir dir;
  const std::string golden = SourcePath("tests/common/io/golden/verl.parquet");
  WriteFile(dir.File("renamed.jsonl"), ReadFile(golden));
  EXPECT_EQ(DataFormatOf(dir.File("renamed.jsonl")), DataFormat::kParquet);
  WriteFile(dir.File("text.parquet"), "{}\n");
  EXPECT_EQ(DataFormatOf(dir.File("text.parquet")), DataFormat::kParquet);
  const auto ignore = [](const Json&, int64_t) { return absl::OkStatus(); };
  EXPECT_ERROR(ReadRows(dir.File("text.parquet"), {"prompt"}, ignore), kDataLoss, "text.parquet");
  WriteFile(dir.File("text.jsonl"), "{\"z\":1,\"a\":2}\n");
  std::string seen;
  ASSERT_OK(ReadRows(dir.File("text.jsonl"), {"z"}, [&](const Json& row, int64_t number) {
    seen += Concat(number, row.dump());
    return absl::OkStatus();
  }));
  EXPECT_EQ(seen, "1{\"z\":1,\"a\":2}");
}

TEST(ReadRows, APipeKeepsItsFirstRows) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const FileDescriptor reader(ends[0]);
  ASSERT_EQ(::write(ends[1], "1\n2\n", 4), 4);
  ASSERT_EQ(::close(ends[1]), 0);
  const std::string path = Concat("/dev/fd/", ends[0]);
  std::string seen;
  EXPECT_OK(ReadRows(path, {}, [&](const Json& row, int64_t) {
    seen += row.dump();
    return absl::OkStatus();
  }));
  EXPECT_EQ(seen, "12");
}

}  // namespace
}  // namespace taopd::testing
