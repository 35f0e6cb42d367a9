#include "common/io/jsonl.h"

#include <utility>

#include "tests/common/io/file_size_limit.h"
#include "tests/common/io/truncate_failure.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(ParseJson, BuildsWhatTheLibraryBuilds) {
  for (const char* text :
       {"null", "true", "-3", "18446744073709551615", "1.5e3", "\"a\\u00e9\\ud83d\\ude00\"", "[]",
        "{}", " [1, [2, {\"a\": [3, {}, []], \"b\": {\"c\": null}}], \"x\"] ",
        R"({"z": {"y": {"x": 1, "w": [1, 2]}, "v": 2}, "a": "", "": false})"}) {
    ASSERT_OK_AND_ASSIGN(const auto value, ParseJson(text, "t"));
    EXPECT_EQ(value, nlohmann::json::parse(text)) << text;
    EXPECT_EQ(value.type(), nlohmann::json::parse(text).type()) << text;
  }
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const std::string text :
       {"", " ", "{", "[1,]", "{\"a\":1,}", "nul", "1 2", "{} x", "\"\xff\"", "\"\\ud800\"", "'a'",
        "[1e400]", "NaN", "// c\n1", "\"a\nb\""}) {
    SCOPED_TRACE(text);
    EXPECT_ERROR(ParseJson(text, "where.json"), kInvalidArgument, "where.json: not JSON");
  }
  EXPECT_ERROR(ParseJson(std::string("{}\0{", 4), "t"), kInvalidArgument, "NUL byte at offset 2");
}

TEST(ParseJson, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_ERROR(ParseJson(R"({"a": 1, "b": 2, "a": 3})", "t"), kInvalidArgument,
               "duplicate key \"a\"");
  EXPECT_ERROR(ParseJson(R"([{"x": {"k": 1, "\u006b": 2}}])", "t"), kInvalidArgument,
               "duplicate key \"k\"");
  EXPECT_OK(ParseJson(R"([{"a": {"a": 1}}, {"a": 2}])", "t"));
}

TEST(ParseJson, DepthLimitIsExact) {
  auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_OK(ParseJson(nested(kMaxJsonDepth), "t"));
  EXPECT_ERROR(ParseJson(nested(kMaxJsonDepth + 1), "t"), kInvalidArgument,
               "deeper than the limit of 100");
  EXPECT_ERROR(ParseJson(std::string(5'000'000, '['), "t"), kInvalidArgument, "deeper");
  std::string objects;
  for (int i = 0; i < 200; ++i) objects += "{\"a\":";
  EXPECT_ERROR(ParseJson(objects, "t"), kInvalidArgument, "deeper");
}

TEST(ParseJson, LimitsTheNumberOfValues) {
  std::string text = "[";
  for (int64_t i = 0; i <= kMaxJsonValues; ++i) text += "1,";
  text += "1]";
  EXPECT_ERROR(ParseJson(text, "t"), kInvalidArgument, "limit of 8000000 values");
}

// Estimates are at least what glibc's malloc takes for the parts, and not much more.
TEST(ParseJson, LimitsTheMemoryOfTheValue) {
  const std::string parts[] = {"1", "\"" + std::string(100, 'x') + "\"", "[]", "{\"key\":0}"};
  const int64_t bytes[] = {16, 16 + 148, 16 + 64, 16 + 64 + 99 + 16};
  for (size_t i = 0; i < std::size(parts); ++i) {
    std::string text = "[" + parts[i];
    for (int j = 1; j < 1000; ++j) text += "," + parts[i];
    text += "]";
    const int64_t all = 16 + 64 + 1000 * bytes[i];
    EXPECT_OK(ParseJson(text, "t", all));
    EXPECT_OK(ParseOrderedJson(text, "t", all));
    EXPECT_ERROR(ParseJson(text, "t", all - 1), kInvalidArgument,
                 Concat("takes more than the limit of ", all - 1, " bytes of memory"));
    EXPECT_ERROR(ParseOrderedJson(text, "t", all - 1), kInvalidArgument, "bytes of memory");
  }
}

TEST(ParseOrderedJson, KeepsTheOrderUnderTheSameLimits) {
  ASSERT_OK_AND_ASSIGN(const auto value,
                       ParseOrderedJson(R"({"z":1,"a":{"y":[2,{"c":3,"b":4}],"x":null}})", "t"));
  EXPECT_EQ(value.dump(), R"({"z":1,"a":{"y":[2,{"c":3,"b":4}],"x":null}})");
  EXPECT_ERROR(ParseOrderedJson(R"({"b":1,"a":2,"b":3})", "t"), kInvalidArgument,
               "duplicate key \"b\"");
  std::string many = "{";
  for (size_t i = 0; i <= kMaxOrderedJsonKeys; ++i)
    many += Concat(i == 0 ? "" : ",", "\"", i, "\":0");
  EXPECT_ERROR(ParseOrderedJson(many + "}", "t"), kInvalidArgument,
               "more than the limit of 10000 keys");
  EXPECT_OK(ParseJson(many + "}", "t"));
}

TEST(ReadJsonFile, NamesTheFile) {
  TempDir dir;
  WriteFile(dir.File("c.json"), "{\"a\": 1");
  EXPECT_ERROR(ReadJsonFile(dir.File("c.json")), kInvalidArgument, "c.json");
  EXPECT_ERROR(ReadJsonFile(dir.File("absent")), kNotFound, "absent");
}

TEST(ReadJsonl, RowsWithLineNumbers) {
  TempDir dir;
  // Blank lines, CR LF, a line longer than the read buffer, and no newline at the end.
  const std::string big(700'000, 'x');
  WriteFile(dir.File("d.jsonl"), "1\n\n  \r\n{\"a\": 2}\r\n\"" + big + "\"\n[3]");
  std::vector<std::pair<int64_t, std::string>> rows;
  ASSERT_OK(ReadJsonl(dir.File("d.jsonl"), [&](const nlohmann::json& value, int64_t line) {
    rows.emplace_back(line, value.dump());
    return absl::OkStatus();
  }));
  EXPECT_THAT(rows, ElementsAre(Pair(1, "1"), Pair(4, "{\"a\":2}"), Pair(5, "\"" + big + "\""),
                                Pair(6, "[3]")));
}

TEST(ReadJsonl, StopsAtTheFirstErrorAndNamesTheLine) {
  TempDir dir;
  WriteFile(dir.File("d.jsonl"), "1\n2\n{\n4\n");
  int num_rows = 0;
  auto count = [&](const nlohmann::json&, int64_t) {
    ++num_rows;
    return absl::OkStatus();
  };
  EXPECT_ERROR(ReadJsonl(dir.File("d.jsonl"), count), kInvalidArgument, "d.jsonl:3: not JSON");
  EXPECT_EQ(num_rows, 2);
  auto refuse = [](const nlohmann::json& value, int64_t) {
    return value == 2 ? InvalidArgument("bad row") : absl::OkStatus();
  };
  EXPECT_ERROR(ReadJsonl(dir.File("d.jsonl"), refuse), kInvalidArgument, "d.jsonl:2: bad row");
  EXPECT_ERROR(ReadJsonl(dir.File("absent"), count), kNotFound, "absent");
  EXPECT_FALSE(ReadJsonl(dir.path(), count).ok());
}

TEST(JsonlWriter, AppendsAndResumesAtASize) {
  TempDir dir;
  const std::string path = dir.File("m.jsonl");
  int64_t size_after_two = 0;
  {
    ASSERT_OK_AND_ASSIGN(auto writer, JsonlWriter::Open(path));
    ASSERT_OK(writer.Write({{"step", 1}, {"a", "x\ny"}}));
    ASSERT_OK(writer.Write({{"step", 2}}));
    ASSERT_OK_AND_ASSIGN(size_after_two, writer.SizeBytes());
    ASSERT_OK(writer.Write({{"step", 3}}));
  }
  EXPECT_EQ(ReadFile(path), "{\"step\":1,\"a\":\"x\\ny\"}\n{\"step\":2}\n{\"step\":3}\n");
  {
    ASSERT_OK_AND_ASSIGN(auto writer, JsonlWriter::Open(path, size_after_two));
    ASSERT_OK_AND_ASSIGN(auto other, JsonlWriter::Open(dir.File("other")));
    other = std::move(writer);
    ASSERT_OK(other.Write({{"step", 33}}));
  }
  EXPECT_EQ(ReadFile(path), "{\"step\":1,\"a\":\"x\\ny\"}\n{\"step\":2}\n{\"step\":33}\n");
  EXPECT_ERROR(JsonlWriter::Open(path, 10'000), kDataLoss, "fewer than the 10000");
}

TEST(JsonlWriter, NoLineFollowsHalfALine) {
  const TempDir dir;
  const std::string path = dir.File("m.jsonl"), whole = "{\"step\":1}\n";
  ASSERT_OK_AND_ASSIGN(auto writer, JsonlWriter::Open(path));
  ASSERT_OK(writer.Write({{"step", 1}}));
  {
    const TruncateFailure fixed_size;
    {
      const FileSizeLimit full(20);
      EXPECT_ERROR(writer.Write({{"step", 2}}), kResourceExhausted, "an incomplete line remains");
    }
    EXPECT_ERROR(writer.Write({{"step", 3}}), kResourceExhausted, "an incomplete line remains");
    EXPECT_EQ(ReadFile(path), whole + "{\"step\":2");
    EXPECT_EQ(*writer.SizeBytes(), whole.size());
  }
  EXPECT_OK(writer.Write({{"step", 4}}));
  EXPECT_EQ(ReadFile(path), whole + "{\"step\":4}\n");
}

TEST(JsonlWriter, InvalidUtf8IsReplaced) {
  TempDir dir;
  ASSERT_OK_AND_ASSIGN(auto writer, JsonlWriter::Open(dir.File("m.jsonl")));
  ASSERT_OK(writer.Write({{"a", "x\xffy"}}));
  EXPECT_EQ(ReadFile(dir.File("m.jsonl")), "{\"a\":\"x\xef\xbf\xbdy\"}\n");
}

}  // namespace
}  // namespace taopd::testing
