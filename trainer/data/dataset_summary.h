// A summary of a data set, as JSON for programs and as text for people: counts by file and by
// source, lengths, and samples.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/text/tokenizer/tokenizer.h"
#include "trainer/data/prompt_dataset.h"

namespace taopd {

// The distribution of the lengths of prompts or responses, in tokens.
struct LengthHistogram {
  struct Bin {
    int64_t low = 0;   // included
    int64_t high = 0;  // not included
    int64_t count = 0;
  };
  std::vector<Bin> bins;  // at most 16, of equal width, which is a power of two
  int64_t min = 0, median = 0, p99 = 0, max = 0;
  double mean = 0;
  int64_t total = 0;
};

LengthHistogram MeasureLengths(std::vector<int64_t> lengths);

struct SummaryOptions {
  std::vector<double> weights;           // one per file; if empty, every file has the weight 1
  int64_t num_samples = 3;               // number of records shown, spread evenly over the data set
  const Tokenizer* tokenizer = nullptr;  // shows given responses as text; if null, as ids only
};
// `name` is the setting that names the files: data.train or data.val. The lengths of the teacher's
// own prompts leave out those with a {sibling}, which are not tokenized yet.
nlohmann::ordered_json DatasetSummaryJson(const std::string& name, const PromptDataset& dataset,
                                          const SummaryOptions& options);
// Formats the JSON of DatasetSummaryJson as text.
std::string DatasetSummaryText(const nlohmann::ordered_json& summary);

}  // namespace taopd
