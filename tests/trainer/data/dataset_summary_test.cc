#include "trainer/data/dataset_summary.h"
#include "tests/support/status_matchers.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

PromptDataset Dataset(const std::vector<int64_t>& lengths) {
  PromptDataset dataset;
  for (size_t i = 0; i < lengths.size(); ++i) {
    PromptRecord record = {.id = Concat("f.jsonl:", i + 1),
                           .prompt = "text",
                           .answer = i % 2 == 0 ? "1" : "",
                           .source = i % 3 == 0 ? "b" : "a"};
    record.prompt_ids.assign(lengths[i], 7);
    dataset.records.push_back(record);
  }
  const FileCounts file = {.path = "f.jsonl",
                           .format = "jsonl",
                           .num_rows = 9,
                           .num_records = static_cast<int64_t>(lengths.size()),
                           .num_overlong = 2,
                           .num_truncated = 3,
                           .num_unknown_bytes = 17,
                           .num_duplicates = 1};
  dataset.files = {file};
  return dataset;
}

TEST(DatasetSummary, HistogramCountsEveryLengthOnce) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{5},
                                              {1, 2, 3},
                                              {100, 101, 131, 1023},
                                              {7, 7, 7, 7},
                                              {1, 100000},
                                              {15, 16, 31, 32}}) {
    const LengthHistogram histogram = MeasureLengths(lengths);
    ASSERT_LE(histogram.bins.size(), 16u);
    int64_t count = 0;
    for (size_t i = 0; i < histogram.bins.size(); ++i) {
      count += histogram.bins[i].count;
      EXPECT_TRUE(i == 0 || histogram.bins[i].low == histogram.bins[i - 1].high);
      EXPECT_EQ(histogram.bins[i].count,
                std::count_if(lengths.begin(), lengths.end(), [&](int64_t length) {
                  return length >= histogram.bins[i].low && length < histogram.bins[i].high;
                }));
    }
    EXPECT_EQ(count, static_cast<int64_t>(lengths.size()));
    EXPECT_EQ(histogram.min, lengths.front());
    EXPECT_EQ(histogram.max, lengths.back());
  }
}

TEST(DatasetSummary, PercentilesAreOfTheSortedLengths) {
  std::vector<int64_t> lengths(200);
  for (int64_t i = 0; i < 200; ++i) lengths[i] = 200 - i;
  const LengthHistogram histogram = MeasureLengths(lengths);
  EXPECT_EQ(histogram.median, 101);
  EXPECT_EQ(histogram.p99, 198);  // 1 % of 200 are longer
  EXPECT_EQ(histogram.max, 200);
  EXPECT_DOUBLE_EQ(histogram.mean, 100.5);
}

TEST(DatasetSummary, TextAndJsonTellTheSame) {
  const SummaryOptions options = {.weights = {1.5}, .num_samples = 2};
  const auto json = DatasetSummaryJson("data.train", Dataset({4, 5, 6, 100}), options);
  EXPECT_EQ(json["num_records"], 4);
  EXPECT_EQ(json["num_overlong_dropped"], 2);
  EXPECT_EQ(json["files"][0]["weight"], 1.5);
  EXPECT_EQ(json["sources"][0],
            (nlohmann::ordered_json{{"source", "a"}, {"num_records", 2}, {"num_answers", 1}}));
  EXPECT_EQ(json["prompt_tokens"]["total"], 115);
  EXPECT_EQ(json["samples"].size(), 2u);
  EXPECT_EQ(json["samples"][1]["id"], "f.jsonl:4");
  const std::string text = DatasetSummaryText(json);
  EXPECT_THAT(text,
              HasSubstr("data.train: 4 prompts, 2 over-long dropped, 3 truncated, 1 duplicates"));
  EXPECT_THAT(text, HasSubstr("--- f.jsonl:4 (b)\n"));
  EXPECT_THAT(text, HasSubstr("ids 7 7 7 7"));
  EXPECT_THAT(text, HasSubstr("17 bytes of the prompts are left out"));
  EXPECT_EQ(json["num_truncated"], 3);
  EXPECT_EQ(json["files"][0]["num_unknown_bytes"], 17);
}

}  // namespace
}  // namespace taopd::testing
